"""`tritium sign` and `tritium verify`: signatures of models, made and checked."""

from __future__ import annotations

import argparse
import os
import secrets
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.models.layout import scan
from engine.observability.text import printable
from engine.provenance import ed25519
from engine.provenance.keys import TrustedFiles
from engine.provenance.manifest import MANIFEST, SIGNATURE, ManifestRefused, write_manifest
from engine.provenance.minisign import Malformed, SecretKey
from engine.provenance.trust import KeysUnusable
from engine.provenance.trust import sign as signature_of
from engine.repository.advice import is_model
from engine.repository.signed import Refused, digests_of
from engine.repository.signed import verify as verify_model
from engine.settings.forms import size_text

_SIGN: Final = """\
Write SHA256SUMS, which lists every file of a model's folder with its digest, and SHA256SUMS.sig, the
signature of it with an Ed25519 key. A server with --require-signed loads a model only if both are there,
if the key is one of its --trusted-keys, and if every file is what is listed.

A signature holds for one model's name: a folder that is renamed, or copied to another model's, has to be
signed again. Sign after the last change; the folder's name is the model's.
"""

_SIGN_EPILOG: Final = """\
Keys and signatures are minisign's, in its own formats. The secret key is not protected by a password; keep
it where only the signer reads it. For a key with a password, or in a token, let minisign sign:
  tritium sign --manifest-only models/resnet
  minisign -S -s KEY -m models/resnet/SHA256SUMS -x models/resnet/SHA256SUMS.sig -t model:resnet

examples:
  tritium sign --new-key release.key
  tritium sign --key release.key models/resnet
  tritium sign --key release.key models/*/
  tritium verify --trusted-keys release.key.pub models
"""

_VERIFY: Final = """\
Say of each model whether a server with --require-signed and these keys would load it, as far as that is a
matter of signatures: each file of its folder is read and held against the signed SHA256SUMS.

A PATH is a repository, or the folder of one model.
"""

_VERIFY_EPILOG: Final = """\
A file of trusted keys has one key a line, as `tritium sign --new-key` and minisign write them; `#` begins a
comment. A line `revoked KEY`, with a key or its id, is for a key that counts no more.

exit status: 0 where every model is signed; 1 where one is not; 2 for a command line that makes no sense.

examples:
  tritium verify --trusted-keys release.key.pub models
  tritium verify --trusted-keys old.pub --trusted-keys new.pub models/resnet
"""


class _Failed(Exception):
    """The command can't be carried out. The message is for its user."""


def sign_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = _parser("sign", _SIGN, _SIGN_EPILOG)
    parser.add_argument("models", metavar="MODEL_DIR", nargs="*", type=Path, help="the folder of a model")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--key", metavar="FILE", type=Path, help="sign with the secret key in FILE")
    what.add_argument(
        "--new-key",
        metavar="FILE",
        type=Path,
        help="make a key: the secret one in FILE, which must not be there, the public one in FILE.pub",
    )
    what.add_argument("--manifest-only", action="store_true", help="write SHA256SUMS, and sign nothing")
    return parser


def sign(argv: Sequence[str]) -> int:
    """Make a key, or sign models; return the process's exit status."""
    parser = sign_parser()
    options = parser.parse_args(argv)
    if bool(options.new_key) == bool(options.models):
        parser.error(
            "--new-key makes a key, and signs no models"
            if options.new_key
            else "name the folder of a model, such as models/resnet"
        )
    try:
        if options.new_key:
            _new_key(options.new_key)
        else:
            secret = _secret(options.key) if options.key else None
            for model in options.models:
                _sign(model, secret)
    except (_Failed, ed25519.LibraryMissing) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def verify_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = _parser("verify", _VERIFY, _VERIFY_EPILOG)
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="a repository, or one model")
    parser.add_argument(
        "--trusted-keys",
        metavar="FILE",
        action="append",
        required=True,
        help="public keys that count; repeatable",
    )
    return parser


def verify(argv: Sequence[str]) -> int:
    """Check the signatures of models; return the process's exit status."""
    options = verify_parser().parse_args(argv)
    keys = TrustedFiles(options.trusted_keys)
    try:
        ed25519.require_library()
        keys.trust()
        models = _models(options.paths)
    except (_Failed, KeysUnusable, ed25519.LibraryMissing) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    signed = [_told(path, keys) for path in models]  # each is told of, whatever the others are
    return 0 if all(signed) else 1


def _parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"tritium {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _new_key(path: Path) -> None:
    public = path.with_name(path.name + ".pub")
    for each in (path, public):
        if os.path.lexists(each):
            raise _Failed(f"{each} is there already, and no key is overwritten: name another file")
    seed = secrets.token_bytes(32)
    secret = SecretKey(secrets.token_bytes(8), seed, ed25519.point_of(seed))
    name = secret.public.name
    _write(path, secret.file(f"minisign secret key {name}, without a password"), 0o600)
    _write(public, f"untrusted comment: minisign public key {name}\n{secret.public.text}\n", 0o644)
    sys.stdout.write(f"made the key {name}\n  secret: {path}, for the signer only\n  public: {public}\n")


def _secret(path: Path) -> SecretKey:
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1 << 16)
        secret = SecretKey.read(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise _Failed(
            f"{path} can't be read: {reason}; `tritium sign --new-key {path}` makes a key"
        ) from None
    except Malformed as error:
        raise _Failed(f"{path} {error}; `tritium sign --help` tells which keys sign") from None
    if ed25519.point_of(secret.seed) != secret.point:
        raise _Failed(f"{path} is damaged: its public key is not that of its secret one")
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        sys.stderr.write(f"warning: {path} can be read or written by others; chmod 600 {path}\n")
    return secret


def _sign(model: Path, secret: SecretKey | None) -> None:
    folder = model.resolve()
    if not folder.is_dir():
        raise _Failed(f"{model} is no folder: name the folder of a model, such as models/resnet")
    if not is_model(folder) and any(is_model(each) for each in folder.iterdir() if each.is_dir()):
        raise _Failed(f"{model} is a repository: name the folders of its models, such as {model}/*/")
    try:
        digests = digests_of(folder)
        manifest = write_manifest(digests)
        signed = (
            "" if secret is None else signature_of(manifest, folder.name, secret, now=time.time_ns() // 10**9)
        )
    except (Refused, ManifestRefused) as error:
        hint = getattr(error, "hint", "")
        raise _Failed(f"{printable(str(model))}: {error}" + (f" ({hint})" if hint else "")) from None
    except OSError as error:
        raise _Failed(f"{printable(str(model))} can't be read: {error.strerror or error}") from None
    try:
        # Where the writing ends half-way, the old signature does not fit the new manifest.
        _replace(folder / MANIFEST, manifest)
        if secret is not None:
            _replace(folder / SIGNATURE, signed.encode())
    except OSError as error:
        raise _Failed(f"{printable(str(model))} can't be written to: {error.strerror or error}") from None
    what = "listed, not signed" if secret is None else f"signed with the key {secret.public.name}"
    sys.stdout.write(f"{printable(folder.name)}: {len(digests)} files {what}\n")


def _models(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise _Failed(f"{path} is no folder: name a repository, or the folder of one model")
        if is_model(path) or (path / SIGNATURE).exists():
            found.append(path.resolve())
            continue
        listed = scan([path])
        if not listed.models:
            raise _Failed(f"{path} has no models: each is a folder in it")
        found += [model.path for model in listed.models.values()]
    return found


def _told(path: Path, keys: TrustedFiles) -> bool:
    """Say of one model whether it is signed, and return that."""
    name = printable(path.name)
    try:
        checked = verify_model(path, keys)
    except Refused as error:
        hint = f" ({error.hint})" if error.hint else ""
        sys.stdout.write(f"{name}: refused: {printable(str(error))}{printable(hint)}\n")
        return False
    except OSError as error:
        sys.stdout.write(f"{name}: can't be read: {error.strerror or error}\n")
        return False
    size, count = checked.nbytes, len(checked.listed)
    sys.stdout.write(
        f"{name}: signed with the key {checked.key.key.name}, {count} files, {size_text(size)}\n"
    )
    return True


def _write(path: Path, text: str, mode: int) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise _Failed(f"{path} can't be written: {error.strerror or error}") from None


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; a link in its place is replaced, and not followed."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
