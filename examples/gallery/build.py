"""Make the models of the gallery: `python examples/gallery/build.py [NAME …] [--into FOLDER]`.

Without names, all that this machine has the packages for. docs/gallery.md shows them one by one. A folder
beside this file is an entry: `models/` has what is written by hand, and `make.py` makes the rest, from data
that comes with a package. A model appears in the repository whole or not at all.
"""

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENTRIES = sorted(path.parent.name for path in HERE.glob("*/make.py"))


def load(name):
    """Import the `make.py` of an entry."""
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", HERE / name / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(needs):
    """Return the commands that install what is missing; `needs` names one for each package."""
    return list(dict.fromkeys(needs[each] for each in needs if importlib.util.find_spec(each) is None))


def build(name, repository):
    """Make the models of an entry in a folder aside, then move them into the repository."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=repository) as aside:
        if (HERE / name / "models").is_dir():
            shutil.copytree(HERE / name / "models", aside, dirs_exist_ok=True)
        told = load(name).make(Path(aside), lambda text: tell(name, text, sys.stderr))
        made = sorted(os.listdir(aside))
        for model in made:
            shutil.rmtree(repository / model, ignore_errors=True)
            os.replace(Path(aside) / model, repository / model)
    tell(name, f"{told} ({time.monotonic() - began:.1f} s)", sys.stdout)


def tell(name, text, file):
    """Print a line about an entry, at once."""
    print(f"{name:<10} {text}", file=file, flush=True)


def main():
    parser = argparse.ArgumentParser(description="Make the models of the gallery.")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(ENTRIES)}; by default all")
    parser.add_argument("--into", type=Path, default=HERE / "models", help="the repository to make them in")
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(ENTRIES))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; the gallery has {', '.join(ENTRIES)}")
    sys.path.insert(0, str(ROOT))
    asked.into.mkdir(parents=True, exist_ok=True)
    left_out = 0
    for name in asked.names or ENTRIES:
        if commands := missing(load(name).NEEDS):
            left_out += 1
            tell(name, f"left out; it needs: {'; '.join(commands)}", sys.stderr)
        else:
            build(name, asked.into)
    if any(asked.into.iterdir()):
        shown = asked.into.relative_to(Path.cwd()) if asked.into.is_relative_to(Path.cwd()) else asked.into
        print(f"\nServe them with\n  tritium serve {shown} --openai-port=9000")
    return 1 if left_out and asked.names else 0


if __name__ == "__main__":
    sys.exit(main())
