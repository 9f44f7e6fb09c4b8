"""Reply ports for tests in which none may be answered."""


class NoPort:
    """A reply port of a request that only waits, or is only looked at: an answer is a mistake."""

    def put(self, part, *, final):
        raise AssertionError("nothing is answered here")
