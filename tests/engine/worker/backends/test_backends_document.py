"""The backend in `docs/backends.md` passes the test that is printed beside it."""

import re
import sys
from pathlib import Path
from types import ModuleType

DOCUMENT = Path(__file__).parents[4] / "docs" / "backends.md"


def test_the_printed_backend_passes_the_printed_test(monkeypatch, tmp_path):
    backend, test = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    for name in ("polynomial", "polynomial.backend"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    exec(backend, sys.modules["polynomial.backend"].__dict__)
    namespace = {}
    exec(test, namespace)
    namespace["test_a_polynomial_is_evaluated"](tmp_path)
