"""The core of this process. Importing this module chooses it; see `engine.core.choosing`.

What starts a server imports this before anything of `actors` or `protocols`. What comes later only reads.
"""

from __future__ import annotations

import os
from typing import Final

from engine.core.choosing import Core, choose

CORE: Final[Core] = choose(os.environ)
