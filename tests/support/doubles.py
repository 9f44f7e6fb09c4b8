"""The base of a stand-in for a class that is no interface: for the type checker it may stand anywhere."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Double = Any
else:
    # Python 3.11 can't make an instance with arguments of a class whose base is `Any`.
    Double = object
