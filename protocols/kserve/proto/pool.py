"""The descriptor pool of Tritium's generated code.

Triton's clients generate messages of the same names in the same package and register them in protobuf's
default pool, where a second definition is refused. A pool of our own lets both live in one process, in any
import order.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor_pool import DescriptorPool

POOL: Final = DescriptorPool()
