"""Which version of Tritium this is."""

import importlib.metadata


def version() -> str:
    """Return Tritium's version, from the installed distribution if there is one."""
    try:
        return importlib.metadata.version("tritium")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"
