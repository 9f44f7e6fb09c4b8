"""`tritium key`: make, list and revoke the API keys of an auth file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_DESCRIPTION: Final = """\
Make, list and revoke the API keys in an auth file, the one that `tritium serve --auth-file=FILE`
goes by. A server that runs takes each change within seconds, and needs no restart.
"""

_EPILOG: Final = """\
The file has digests of keys, and never a key: what `tritium key new` prints can't be printed
again. Comments and order of the file stay as they are. Calls at the same time wait for each
other. A symbolic link stays, and the file that it leads to is exchanged. Kubernetes' secrets are
read-only: edit a copy, and update the secret from it.

exit status: 0 when it is done, 1 where the file or what was asked for makes no sense, 2 for a
command line that makes none.

examples:
  KEY=$(tritium key new --auth-file auth.toml --name ci --group builders --expires 90d)
  tritium key list --auth-file auth.toml
  tritium key revoke ci --auth-file auth.toml

A client sends the key as `Authorization: Bearer KEY`. docs/identity.md has the rest.
"""


def key(argv: Sequence[str]) -> int:
    """Run one of the commands about keys; return the process's exit status."""
    options = key_parser().parse_args(argv)
    from engine.audit.commands import NotRecorded
    from engine.audit.file import AuditUnusable
    from engine.identity.document import AuthFileError
    from engine.identity.editing import NotEdited
    from engine.identity.storing import NotStored

    now = datetime.now(UTC).replace(microsecond=0)
    try:
        match options.what:
            case "new":
                return _new(options, now)
            case "list":
                return _list(options, now)
            case _:
                return _revoke(options, now)
    except (AuthFileError, NotEdited, NotStored, NotRecorded, AuditUnusable, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def key_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="tritium key", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=form, allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    new = commands.add_parser(
        "new",
        help="make a key, and print it on standard output",
        description="Make a key, write its digest into the auth file, and print the key: alone on standard "
        "output, explanations on standard error. A file that is not there is made, for its owner only.",
        epilog="example: KEY=$(tritium key new --auth-file auth.toml --name ci --group builders --expires "
        "90d)",
        allow_abbrev=False,
    )
    _add_file(new)
    new.add_argument(
        "--name",
        required=True,
        metavar="NAME",
        help="the identity that the key is for, as rules, logs and metrics call it; it may have several keys",
    )
    new.add_argument("--id", default="", metavar="ID", help="the key's id, which is no secret [made of NAME]")
    new.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="a group it is in; repeatable"
    )
    new.add_argument(
        "--expires", metavar="WHEN", help="12h, 90d, 26w, 1y, 2030-01-31 (its start, UTC) or a time [never]"
    )
    _add_audit_log(new)
    listing = commands.add_parser(
        "list",
        help="show the keys: ids, names, groups, how they stand; no secret and no digest",
        description="Show the keys of the auth file and how they stand. Neither secrets nor digests are "
        "shown.",
        allow_abbrev=False,
    )
    _add_file(listing)
    listing.add_argument("--json", action="store_true", help="print them as JSON")
    revoke = commands.add_parser(
        "revoke",
        help="let a key open nothing any more",
        description="Revoke a key: its table stays in the file, with the time in 'revoked'. Requests that "
        "show it are "
        "refused as soon as the server has read the file, within seconds, on open connections too.",
        allow_abbrev=False,
    )
    revoke.add_argument("id", metavar="ID", help="the key's id: what stands before the dot in it")
    _add_file(revoke)
    _add_audit_log(revoke)
    return parser


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--auth-file", required=True, metavar="FILE", help="the auth file, which is TOML")


def _add_audit_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--audit-log",
        default="",
        metavar="FILE",
        help="record it in this audit log, which may be that of a running server; where that can't be"
        " written, nothing is done [only the server's audit log tells, once it has read the auth file]",
    )


def _new(options: argparse.Namespace, now: datetime) -> int:
    from engine.audit.commands import recorded_command
    from engine.identity.document import AuthFile
    from engine.identity.editing import NewKey, chosen_id, with_key
    from engine.identity.keys import digest_of, new_secret
    from engine.identity.storing import edit_file
    from engine.identity.wording import read_moment

    path, name = options.auth_file, options.name
    expires = None if options.expires is None else read_moment(options.expires, now)
    secret = new_secret()
    written: list[tuple[str, AuthFile]] = []

    def edit(text: str) -> str:
        id_ = chosen_id(text, options.id, name)
        made = NewKey(id=id_, digest=digest_of(secret), name=name, groups=options.group, expires=expires)
        edited, file = with_key(text, made, file=path)
        written.append((id_, file))
        return edited

    facts = {"auth_file": path, "name": name, **({"groups": options.group} if options.group else {})}
    if expires is not None:
        facts["expires"] = f"{expires:%Y-%m-%dT%H:%M:%SZ}"
    with recorded_command(options.audit_log, "key_new", facts) as made:
        new = edit_file(path, edit, create=True)
        ((id_, file),) = written
        made["id"] = id_
    sys.stdout.write(f"{id_}.{secret}\n")
    sys.stdout.flush()
    until = f"until {expires:%Y-%m-%dT%H:%M:%SZ}" if expires is not None else "and never expires"
    sys.stderr.write(
        f"{path}{', made now' if new else ''}: key '{id_}' is for '{name}' {until}. This is the only time "
        "that the key itself is shown.\n"
    )
    subjects = file.keys[id_].identity.subjects
    if not any(rule.allows and rule.subjects & subjects for rule in file.rules):
        sys.stderr.write(
            f"no rule allows '{name}' anything yet. Add one to the file: [[rule]] for = [\"{name}\"], "
            'allow = ["metadata", "inference"], each on a line of its own\n'
        )
    return 0


def _list(options: argparse.Namespace, now: datetime) -> int:
    from engine.identity.document import read_document, read_toml
    from engine.identity.loading import read_text
    from engine.identity.standing import HEADINGS, key_facts
    from engine.observability.text import aligned

    text = read_text(options.auth_file)
    document = read_toml(text, options.auth_file)
    file = read_document(document, text, options.auth_file)
    facts = list(key_facts(document, file, now.timestamp()))
    if options.json:
        sys.stdout.write(json.dumps([each.as_json() for each in facts], indent=2) + "\n")
    elif facts:
        sys.stdout.write(aligned([HEADINGS, *(each.as_row() for each in facts)]))
    else:
        sys.stderr.write(f"{options.auth_file}: no keys; `tritium key new` makes one\n")
    return 0


def _revoke(options: argparse.Namespace, now: datetime) -> int:
    from engine.audit.commands import recorded_command
    from engine.identity.editing import Revocation, with_revoked
    from engine.identity.standing import revocation_text
    from engine.identity.storing import edit_file

    done = Revocation("")

    def edit(text: str) -> str:
        nonlocal done
        done = with_revoked(text, options.id, now, file=options.auth_file)
        return done.text

    facts = {"auth_file": options.auth_file, "id": options.id}
    with recorded_command(options.audit_log, "key_revoke", facts) as told:
        edit_file(options.auth_file, edit)
        if done.before is not None:
            told["revoked_already"] = True
    if done.before is not None:
        sys.stderr.write(
            f"{options.auth_file}: key '{options.id}' was revoked already: {revocation_text(done.before)}\n"
        )
        return 0
    sys.stderr.write(
        f"{options.auth_file}: key '{options.id}' is revoked; a server that goes by this file refuses it "
        "within seconds\n"
    )
    return 0
