"""`tritium auth explain`: which rule of an auth file decides what a client may do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.identity.gate import Book
    from engine.identity.rules import Identity

_DESCRIPTION: Final = """\
Say whether a client may do something by the rules of an auth file, and which rule decides. No server
is asked, and none need run.

The client is named by its KEY (an API key or a JWT), by --key-file, --identity or --anonymous.
"""

_EPILOG: Final = """\
A KEY on the command line can be seen by every user of the machine, in `ps` and in the shell's history:
--key-file FILE or `-` (standard input) keep it secret, and --identity needs none.

exit status: 0 allowed, 1 denied (bad credentials too), 2 for what makes no sense: the file, the words.

examples:
  tritium auth explain --identity ci inference resnet --auth-file auth.toml
  tritium auth explain --identity jwt:alice --group ops model-repository --auth-file auth.toml
  tritium auth explain --anonymous health --auth-file auth.toml
  tritium auth explain --key-file ci.key inference resnet --auth-file auth.toml
  echo "$KEY" | tritium auth explain - inference resnet --auth-file auth.toml --json
"""

_MOST: Final = 64 * 1024  # characters of standard input


class _BadInput(Exception):
    """What was given makes no sense. The message says what would."""


class _Refused(Exception):
    """The credentials are not good. The message says why."""


def auth(argv: Sequence[str]) -> int:
    """Explain a decision; return the process's exit status."""
    parser = auth_parser()
    options = parser.parse_args(argv)
    words = list(options.words)
    key = ""
    if not (options.identity or options.anonymous or options.key_file):
        key = words.pop(0)
    if not 1 <= len(words) <= 2:
        client = "KEY, " if key else ""
        parser.error(f"expected {client}ACTION and perhaps MODEL, got {len(options.words)} words")
    if options.group and not options.identity:
        parser.error("--group goes with --identity: a key and a token say their groups themselves")
    try:
        return _explain(options, key, words[0], words[1] if len(words) > 1 else "")
    except _BadInput as error:
        sys.stderr.write(f"{error}\n")
        return 2


def auth_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="tritium auth",
        description="Explain what an auth file allows.",
        epilog="`tritium auth explain --help` tells more. `tritium key` makes keys, `tritium check "
        "--auth-file` checks a file.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    explain = commands.add_parser(
        "explain",
        help="say whether a client may do something, and which rule decides",
        usage="tritium auth explain (KEY | - | --key-file FILE | --identity NAME | --anonymous)\n"
        "                            ACTION [MODEL] --auth-file FILE [--group GROUP]... [--namespace NAMESPACE] [--json]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=form,
        allow_abbrev=False,
    )
    explain.add_argument(
        "words",
        metavar="[KEY] ACTION [MODEL]",
        nargs="+",
        help="the key, where no flag names the client; an action such as inference; a model, if it concerns "
        "one",
    )
    who = explain.add_mutually_exclusive_group()
    who.add_argument("--key-file", metavar="FILE", help="a file with the API key or JWT")
    who.add_argument(
        "--identity",
        metavar="NAME",
        help="the name of an identity, such as ci, jwt:alice or model:my_pipeline",
    )
    who.add_argument("--anonymous", action="store_true", help="a client that shows no credentials")
    explain.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="GROUP",
        help="a group that the identity is in; repeatable",
    )
    explain.add_argument(
        "--namespace", default="", metavar="NAMESPACE", help="the repository in which the model lies"
    )
    explain.add_argument("--auth-file", required=True, metavar="FILE", help="the auth file, which is TOML")
    explain.add_argument("--json", action="store_true", help="print the answer as JSON")
    return parser


def _explain(options: argparse.Namespace, key: str, action_word: str, model: str) -> int:
    from actors.values.callers import Action
    from engine.identity.document import AuthFileError
    from engine.identity.explaining import NoSuchIdentity, explain, named_identity
    from engine.identity.loading import load_book, read_text
    from engine.models.problems import did_you_mean

    every = {action.value: action for action in Action}
    if action_word not in every:
        hint = did_you_mean(action_word, every) or f"actions are {', '.join(every)}"
        raise _BadInput(f"'{action_word[:80]}' is no action ({hint})")
    now = datetime.now(UTC).timestamp()
    try:
        book, _ = load_book(options.auth_file)
        text = read_text(options.auth_file)
        if options.anonymous:
            identity = book.file.anonymous
        elif options.identity:
            identity = named_identity(book.file, options.identity, options.group)
        else:
            identity = _shown(_key(options, key), book, now)
    except (AuthFileError, NoSuchIdentity) as error:
        raise _BadInput(str(error)) from error
    except _Refused as error:
        if options.json:
            sys.stdout.write(
                json.dumps({"allowed": False, "identity": None, "reason": str(error)}, indent=2) + "\n"
            )
        else:
            sys.stdout.write(f"denied: {error}\n")
        return 1
    found = explain(book.file, identity, every[action_word], model, options.namespace)
    if options.json:
        sys.stdout.write(json.dumps(found.as_json(text), indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in found.as_lines(text)))
    return 0 if found.decision.allowed else 1


def _key(options: argparse.Namespace, key: str) -> str:
    """Return the credentials, wherever they are. Raises _BadInput."""
    from engine.cli.credentials import NoCredentials, checked, key_in

    try:
        if options.key_file:
            return key_in(options.key_file)
        if key == "-":
            return checked(sys.stdin.readline(_MOST), "standard input")
        sys.stderr.write(
            "warning: the key stands on the command line, where every user of this machine can read it; use "
            "--key-file FILE, or - for standard input\n"
        )
        return checked(key, "the command line")
    except NoCredentials as error:
        raise _BadInput(str(error)) from error


def _shown(token: str, book: Book, now: float) -> Identity:
    """Return whose credentials these are, as the server's gate decides it. Raises _Refused."""
    from actors.values.callers import Peer
    from actors.values.errors import Unauthenticated
    from engine.identity.gate import Gate

    gate = Gate(book, now=lambda: now, wall_clock=lambda: now)
    try:
        gate.identify(f"Bearer {token}".encode(), Peer())
    except Unauthenticated as error:
        raise _Refused(f"{error.message}{_more(token, book)}") from error
    if token.count(".") > 1:
        return book.prove(token, now).identity
    return book.file.keys[token.partition(".")[0]].identity


def _more(token: str, book: Book) -> str:
    """Return what the operator may know about bad credentials, beyond what the server tells their owner."""
    if token.count(".") > 1:
        known = ", ".join(f"'{name}'" for name in book.file.issuers)
        return f" (issuers of this file: {known or 'none'})"
    from engine.identity.keys import matches

    id_, _, secret = token.partition(".")
    if not secret:
        return " (a key is ID.SECRET, and this has no dot)"
    key = book.file.keys.get(id_)
    if key is None:
        return " (no key of this file has its id)"
    return "" if matches(secret, key.digest) else f" (it is not the secret of key '{id_}')"
