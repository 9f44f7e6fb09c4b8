"""The base of a stand-in for a class that is no interface: for the type checker it may stand anywhere."""

from typing import TYPE_CHECKING, Any

from actors.values.requests import ServedModel

if TYPE_CHECKING:
    Double = Any
else:
    # Python 3.11 can't make an instance with arguments of a class whose base is `Any`.
    Double = object


class ServedDouble(ServedModel):
    """A stand-in for a served model, whose `spec` and `marks` are plain attributes. It takes no request."""

    spec: Any = None
    marks: Any = None

    @classmethod
    def of(cls, spec):
        """Return one of this specification."""
        double = cls()
        double.spec = spec
        return double

    async def submit(self, request):
        self.submit_nowait(request)

    def submit_nowait(self, request):
        raise AssertionError("nothing is submitted here")

    def cancel(self, request):
        raise AssertionError("nothing is cancelled here")
