"""Edits of an auth file's text: a key is added or revoked, and all else stays as it was written. Pure.

An edit changes lines, and then proves itself. The new text is read as TOML, and the one table that was
changed is compared with what it should be; the rest of the text is the old one, byte for byte. Where tables
are written in a way that this does not reach (inline arrays, quoted names), the edit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from engine.identity.document import NAME, AuthFile, AuthFileError, read_auth_file, read_document, read_toml
from engine.identity.keys import ID
from engine.models.problems import did_you_mean

HEAD: Final = """\
# Who may do what on a Tritium server: `tritium serve --auth-file=THIS_FILE`.
#
# `tritium key new --auth-file=THIS_FILE --name=NAME` appends a key: its digest, not the key itself.
# Rules are tried in their order, and the first that matches decides. What no rule allows is denied, except
# health checks and metrics, which are open until a rule names them. For example:
#
#   [[rule]]
#   for = ["authenticated"]             # or names, "group:NAME", "anonymous", "*"
#   allow = ["metadata", "inference"]   # or deny = […]; "*" is every action
#   models = ["*"]                      # patterns such as "resnet*"
#
# `tritium check --auth-file=THIS_FILE` says what is wrong and explains the rest.
"""
"""How an auth file begins that `tritium key new` makes."""

_HEADER: Final = re.compile(r"[ \t]*\[\[[ \t]*key[ \t]*\]\]")
_ANY_HEADER: Final = re.compile(r"[ \t]*\[")
_ID: Final = re.compile(r"""^[ \t]*id[ \t]*=[ \t]*(?:"([^"\\]*)"|'([^']*)')""", re.MULTILINE)
_REVOKED: Final = re.compile(
    r"([ \t]*revoked[ \t]*=[ \t]*)(?:true|false|[0-9][0-9TtZz:.+ \t-]*[0-9Zz])(.*)", re.DOTALL
)
_NO_ID: Final = re.compile(r"[^A-Za-z0-9_]+")


class NotEdited(Exception):
    """The text can't be edited so. The message says why, and what would have worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key as it is written into the file. `digest` is that of its secret."""

    id: str
    digest: str
    name: str
    groups: Sequence[str] = ()
    expires: datetime | None = None

    @property
    def content(self) -> Mapping[str, Any]:
        """What TOML makes of its table."""
        found: dict[str, Any] = {"id": self.id, "digest": self.digest, "name": self.name}
        if self.groups:
            found["groups"] = list(self.groups)
        if self.expires is not None:
            found["expires"] = self.expires
        return found

    def lines(self) -> list[str]:
        """Return its table as text."""
        lines = ["[[key]]", f'id = "{self.id}"', f'digest = "{self.digest}"', f'name = "{self.name}"']
        if self.groups:
            lines.append(f"groups = [{', '.join(f'{chr(34)}{each}{chr(34)}' for each in self.groups)}]")
        if self.expires is not None:
            lines.append(f"expires = {_moment(self.expires)}")
        return lines


def chosen_id(text: str, wanted: str, name: str) -> str:
    """Return the id of a new key in `text`: `wanted`, or one that is made of the identity's `name`.

    Raises NotEdited if it is in use already, or no id.
    """
    taken = {found[1] or found[2] or "" for found in _ID.finditer(text)}
    if wanted:
        if not ID.fullmatch(wanted) or wanted.startswith("-"):
            raise NotEdited(
                f"'{wanted[:80]}' is no id: it takes letters, digits, - and _, 64 at most, and no - in front"
            )
        if wanted in taken:
            raise NotEdited(f"there is a key '{wanted}' already: choose another --id, or leave it out")
        return wanted
    base = _NO_ID.sub("-", name).strip("-")[:50] or "key"
    return next(
        each
        for number in range(1, len(taken) + 2)
        if (each := base if number == 1 else f"{base}-{number}") not in taken
    )


def with_key(text: str, key: NewKey, *, file: str) -> tuple[str, AuthFile]:
    """Return the text of the auth file `file` with one more key at its end, and what it says then.

    Raises NotEdited for what can't be written, and AuthFileError if the file makes no sense as it is.
    """
    for kind, word in (("name", key.name), *(("group", each) for each in key.groups)):
        if not NAME.fullmatch(word):
            raise NotEdited(
                f"'{word[:80]}' is no {kind}: it takes letters, digits and . _ @ / -, begins with a letter "
                "or digit, and has 128 characters at most"
            )
    newline = "\r\n" if "\r\n" in text else "\n"
    before = text if not text or text.endswith("\n") else text + newline
    gap = () if not before or before.endswith(newline * 2) else ("",)
    edited = before + "".join(f"{line}{newline}" for line in (*gap, *key.lines()))
    document, found = _read(edited, text, file)
    if document["key"][-1] != key.content:
        raise NotEdited(_beyond(file))
    return edited, found


@dataclass(frozen=True, slots=True)
class Revocation:
    """An edited text. `before` is what 'revoked' said before, if the key was revoked already."""

    text: str
    before: object = None


def with_revoked(text: str, id_: str, now: datetime, *, file: str) -> Revocation:
    """Return the text of the auth file `file` with the key `id_` revoked at `now`.

    Raises NotEdited if there is no such key or its table can't be edited, and AuthFileError if the file makes
    no sense as it is.
    """
    lines = text.split("\n")
    start, end = _table_of(lines, id_, text, file)
    content = _alone(lines[start:end], file)
    if content.get("id") != id_:
        raise NotEdited(_beyond(file))
    if content.get("revoked", False) is not False:
        read_auth_file(text, file)
        return Revocation(text, content["revoked"])
    at = next((at for at in range(start + 1, end) if _REVOKED.fullmatch(lines[at])), None)
    if at is None:
        ending = "\r" if lines[start].endswith("\r") else ""
        at = next(at for at in range(start + 1, end) if _ID.match(lines[at]))
        edited = [*lines[: at + 1], f"revoked = {_moment(now)}{ending}", *lines[at + 1 :]]
        end += 1
    else:
        line = _REVOKED.sub(rf"\g<1>{_moment(now)}\g<2>", lines[at])
        edited = [*lines[:at], line, *lines[at + 1 :]]
    wanted = {**content, "revoked": now.replace(microsecond=0)}
    if _alone(edited[start:end], file) != wanted:
        raise NotEdited(_beyond(file))
    joined = "\n".join(edited)
    document, _ = _read(joined, text, file)
    if [each for each in document.get("key", ()) if each["id"] == id_] != [wanted]:
        raise NotEdited(_beyond(file))
    return Revocation(joined)


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _table_of(lines: Sequence[str], id_: str, text: str, file: str) -> tuple[int, int]:
    """Return where the table of a key begins, and where the next table does."""
    headers = [at for at, line in enumerate(lines) if _ANY_HEADER.match(line)]
    for start, end in pairwise([*headers, len(lines)]):
        if _HEADER.match(lines[start]):
            for line in lines[start + 1 : end]:
                if (found := _ID.match(line)) is not None and id_ == (found[1] or found[2]):
                    return start, end
    keys = read_auth_file(text, file).keys
    if id_ in keys:
        raise NotEdited(_beyond(file))
    told = did_you_mean(id_, keys) or f"`tritium key list --auth-file {file}` shows what there is"
    raise NotEdited(f"{file}: there is no key with the id '{id_[:80]}' ({told})")


def _alone(lines: Sequence[str], file: str) -> Mapping[str, Any]:
    """Return the content of the one table that these lines are."""
    try:
        document = read_toml("".join(f"{line}\n" for line in lines), file)
    except AuthFileError:
        raise NotEdited(_beyond(file)) from None
    content: Mapping[str, Any] = document["key"][0]
    return content


def _read(edited: str, text: str, file: str) -> tuple[Mapping[str, Any], AuthFile]:
    """Return the document of the edited text. Complains about the old `text` if that was wrong already."""
    try:
        document = read_toml(edited, file)
    except AuthFileError:
        read_auth_file(text, file)
        raise NotEdited(_beyond(file)) from None
    try:
        return document, read_document(document, edited, file)
    except AuthFileError as error:
        read_auth_file(text, file)
        raise NotEdited(str(error)) from None


def _beyond(file: str) -> str:
    return (
        f"{file}: its keys are written in a way that this command can't edit without touching the rest. "
        "Write each as "
        "a table of its own: a line [[key]], and below it a line for each of id, digest, name … . Nothing "
        "was changed"
    )
