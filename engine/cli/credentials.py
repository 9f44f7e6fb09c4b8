"""The key that a command shows to a server: from a file or a variable, so that no command line has it."""

from __future__ import annotations

from collections.abc import Mapping

from engine.identity.keys import LONGEST_TOKEN
from engine.settings.forms import SettingsError
from engine.settings.scanning import CLIENT_KEY
from engine.settings.secrets import read_secret


class NoCredentials(Exception):
    """The key can't be had. The message says why, and shows nothing of it."""


def key_in(path: str) -> str:
    """Return the API key or JWT in a file, whose only line it is. Raises NoCredentials."""
    try:
        return checked(read_secret(path, "--key-file"), f"--key-file {path}")
    except SettingsError as error:
        raise NoCredentials(error.message) from error


def checked(word: str, source: str) -> str:
    """Return `word` as a key. Raises NoCredentials, which names its `source`, if no header may have it."""
    key = word.strip()
    if not key or not (key.isascii() and key.isprintable()) or " " in key or len(key) > LONGEST_TOKEN:
        raise NoCredentials(f"{source} holds no key: that is one line, such as `tritium key new` prints")
    return key


def credentials(key_file: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the key that a command is to show, and where it is from; both empty for none.

    Raises NoCredentials.
    """
    if key_file:
        return key_in(key_file), f"--key-file {key_file}"
    if environ.get(CLIENT_KEY):
        source = f"the variable {CLIENT_KEY}"
        return checked(environ[CLIENT_KEY], source), source
    return "", ""
