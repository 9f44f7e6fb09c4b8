"""Write `golden/` anew: what Helm makes of each set in `values/`.

    PYTHONPATH=. PYTHON_WITH_HELM -m tests.deploy.helm

It takes a Python with `helm-python-sdk` and PyYAML.
"""

from __future__ import annotations

import sys

from tests.deploy.helm.charts import GOLDEN, SETS, kept, rendered, values_of


def main() -> int:
    """Write a file for each set, and remove those of sets that are gone."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.yaml"):
        if path.stem not in SETS:
            path.unlink()
    for name in SETS:
        (GOLDEN / f"{name}.yaml").write_text(kept(rendered(values_of(name))))
        sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
