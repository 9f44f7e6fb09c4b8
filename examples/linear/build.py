"""Makes two models for the backend `linear`, by numpy alone: python build.py REPOSITORY.

`heights` fits a line through points. `quadrants` names the quadrant that a point is in.
"""

import sys
from pathlib import Path

import numpy as np


def write(repository, name, coefficients, intercepts, **more):
    """Write a model: its weights, and a configuration that names the backend."""
    version = Path(repository, name, "1")
    version.mkdir(parents=True, exist_ok=True)
    (version.parent / "config.pbtxt").write_text('backend: "linear"\n')
    np.savez(version / "weights.npz", coefficients=coefficients, intercepts=intercepts, **more)


def fitted(features, targets):
    """Return coefficients and intercepts of the least squares."""
    ones = np.ones((len(features), 1))
    found, *_ = np.linalg.lstsq(np.hstack([features, ones]), targets, rcond=None)
    return found[:-1], found[-1]


def main(repository):
    """Fit both on made-up points."""
    chance = np.random.default_rng(7)
    ages = chance.uniform(2, 12, size=(200, 1))
    heights = 77 + 6 * ages + chance.normal(0, 2, size=ages.shape)
    write(repository, "heights", *fitted(ages, heights))

    points = chance.normal(size=(400, 2))
    quadrant = (points[:, 0] < 0) + 2 * (points[:, 1] < 0)
    scores = 6 * np.eye(4)[quadrant]
    write(repository, "quadrants", *fitted(points, scores), classes=["++", "-+", "+-", "--"])


if __name__ == "__main__":
    main(sys.argv[1])
