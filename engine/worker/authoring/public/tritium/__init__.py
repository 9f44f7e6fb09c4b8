"""Write models for Tritium: `import tritium`. The names are explained in docs/authoring.md.

This is the one package whose names are imported from it and not from its modules: it is the face of
`engine.worker.authoring`.
"""

from __future__ import annotations

import sys as _sys

try:
    if _sys.version_info >= (3, 11):
        # `tritium.asgi` and `python -m tritium` serve, and this comes before anything that it chooses.
        import engine.core.chosen as _chosen  # noqa: F401
    from engine.worker.authoring.api import *  # noqa: F403  # what is public is listed there
    from engine.worker.authoring.api import __all__ as __all__
    from engine.worker.authoring.api import linked as linked
except ImportError as error:
    from importlib import import_module

    import_module("tritium.foreign").refuse(error)
    raise
