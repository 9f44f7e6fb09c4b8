"""The error for an ask that can't be met."""

from __future__ import annotations


class Refused(Exception):
    """An ask can't be met. `status` is HTTP's; `param` is the field at fault, empty if there is none."""

    def __init__(self, message: str, *, param: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
