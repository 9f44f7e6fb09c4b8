"""Reads an auth file and the files that it names, for the server and for commands."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from engine.identity.document import AuthFile, AuthFileError, read_auth_file
from engine.identity.gate import Book
from engine.identity.tokens import Tokens, read_key_set

LARGEST: Final = 64 * 1024 * 1024


def read_text(path: str) -> str:
    """Return the text of an auth file. Raises AuthFileError, also where every user may write it."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise AuthFileError(f"{path}: can't be read: {error.strerror}") from error
    if mode & stat.S_IWOTH and stat.S_ISREG(mode):
        raise AuthFileError(f"{path}: every user of this machine may change it; `chmod o-w` it")
    if len(content) > LARGEST:
        raise AuthFileError(f"{path}: it has more than {LARGEST} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise AuthFileError(f"{path}: it is not UTF-8, as TOML is: byte {error.start} is wrong") from error


def key_files(file: AuthFile, path: str) -> dict[str, Path]:
    """Return the JWKS file of each issuer. A relative path is from the folder of the auth file."""
    folder = Path(path).parent
    return {issuer.issuer: folder / issuer.jwks for issuer in file.issuers.values()}


def load_book(path: str) -> tuple[Book, list[str]]:
    """Return what the auth file at `path` says, and the files that were read. Raises AuthFileError."""
    file = read_auth_file(read_text(path), path)
    paths = key_files(file, path)
    key_sets = {name: read_key_set(file.issuers[name], each) for name, each in paths.items()}
    return Book(file, Tokens(file.issuers, key_sets)), [path, *map(str, paths.values())]
