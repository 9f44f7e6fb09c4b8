"""What commands change, such as `tritium key`, recorded in the same log as what the server does."""

from __future__ import annotations

import os
import pwd
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from engine.audit.file import AuditFile
from engine.audit.records import ASKED, DONE, FAILED, LONGEST, Record

_NEVER: Final = 2**62  # bytes: the server begins other files, as its flags say


class NotRecorded(Exception):
    """The audit log can't be written. The message tells the operator what was done, mostly nothing."""


@contextmanager
def recorded_command(path: str, action: str, facts: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Record in the audit log at `path` that `action` is asked for, and around the block what comes of it.

    The block may add facts to the dictionary that it gets. Without a path nothing is recorded. Raises
    AuditUnusable before the block, and NotRecorded before and after it.
    """
    more: dict[str, object] = {}
    if not path:
        yield more
        return
    file = AuditFile(path, size=_NEVER, keep=0)
    asked = Record(
        time=time.time(),  # noqa: TID251  # a command has no loop and no clock but this one
        action=action,
        outcome=ASKED,
        id=f"{secrets.token_hex(4)}-1",
        identity=f"user:{_user()}",
        via="command",
        facts=facts,
    )
    try:
        file.check()
        file.append([asked], room=LONGEST)
    except OSError as error:
        file.close(trim=False)
        raise NotRecorded(
            f"the audit log '{path}' can't be written, so nothing was done: {error.strerror}"
        ) from error
    try:
        try:
            yield more
        except Exception as failure:
            _tell(file, replace(asked, outcome=FAILED, reason=str(failure), facts=more))
            raise
        _tell(file, replace(asked, outcome=DONE, facts=more))
    finally:
        file.close(trim=False)


def _tell(file: AuditFile, record: Record) -> None:
    try:
        file.append([replace(record, time=time.time())])  # noqa: TID251  # as above
    except OSError as error:
        came = "it was done" if record.outcome == DONE else f"it failed ({record.reason})"
        raise NotRecorded(
            f"{came}, but the audit log '{file.path}' can't be written any more: {error.strerror}"
        ) from error


def _user() -> str:
    number = os.getuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
