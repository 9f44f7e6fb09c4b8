"""Iris: a forest of scikit-learn, pickled, and converted by `tritium convert sklearn`."""

import subprocess
import sys

NEEDS = {
    "sklearn": "pip install -e '.[gallery]'",
    "joblib": "pip install -e '.[gallery]'",
    "treelite": "pip install -e '.[gallery]'",
}


def make(repository, say):
    """Train on four of five flowers; the other 30 say how good it is."""
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import train_test_split

    x, x_test, y, y_test = train_test_split(
        *load_iris(return_X_y=True), test_size=30, random_state=0, stratify=load_iris().target
    )
    forest = RandomForestClassifier(50, random_state=0).fit(x, y)
    version = repository / "iris" / "1"
    version.mkdir()
    pickle = version / "iris.joblib"
    joblib.dump(forest, pickle)
    command = [sys.executable, "-m", "tritium", "convert", "sklearn", pickle, version / "checkpoint.tl"]
    subprocess.run(command, check=True, capture_output=True)
    pickle.unlink()
    right = int((forest.predict(x_test) == y_test).sum())
    return f"50 trees; they name {right} of 30 flowers that they have not seen"
