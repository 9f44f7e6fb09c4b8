"""The ASGI application: `hypercorn tritium.asgi`, on asyncio, or with `-k trio`.

It is that of `engine.asgi`. A folder `engine` of your own in the current directory is told apart from it.
"""

from __future__ import annotations

from engine.asgi import app as app
