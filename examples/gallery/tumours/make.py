"""Tumours: two versions of one model, three stumps and a forest, that share the traffic."""

NEEDS = {"sklearn": "pip install -e '.[gallery]'", "treelite": "pip install -e '.[gallery]'"}


def make(repository, say):
    """Train both versions on three quarters of the Wisconsin data; `unseen` is the rest."""
    import treelite
    from sklearn.ensemble import RandomForestClassifier

    x, x_test, y, y_test = patients()
    right = []
    for version, forest in (
        ("1", RandomForestClassifier(3, max_depth=1, random_state=0)),
        ("2", RandomForestClassifier(100, random_state=0)),
    ):
        forest.fit(x, y)
        folder = repository / "tumours" / version
        folder.mkdir()
        treelite.sklearn.import_model(forest).serialize(folder / "checkpoint.tl")
        right.append((forest.predict(x_test) == y_test).mean())
    return "of the tumours that it has not seen, version 1 knows {:.0%}, version 2 {:.0%}".format(*right)


def patients():
    """Return what the versions learn from, and the 143 patients that they never see."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    x, y = load_breast_cancer(return_X_y=True)
    return train_test_split(x, y, test_size=143, random_state=0, stratify=y)
