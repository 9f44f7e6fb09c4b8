"""What compiled classes have to say of themselves, and Python ignores.

A class of the compiled core is native: its attributes are fields of a struct, and calls go through a table.
Only native classes may inherit from it, unless it is marked::

    @mypyc_attr(allow_interpreted_subclasses=True)
    class ReplyPort(ABC):

The mark is mypyc's, which knows it by its full name. At run time it does nothing, so nothing of mypyc's has
to be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[type[T]], type[T]]:
        """Return a decorator that returns the class."""
        return lambda cls: cls
