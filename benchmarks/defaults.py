"""Compares the default parameters with values around them, by accuracies on digits, photographs, sequences and tables.

    python benchmarks/defaults.py [--output FILE.json]

Photographs are pieces of three pictures that come with scikit-learn and matplotlib. Of every data set, half the rows
(at most 500) are for training and at most 300 others for testing. Scores of ridges are leave-one-out accuracies on the
training rows; other scores are on the test rows.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image
from sklearn import datasets
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tangentless as tl
from tangentless.classical import Gaussian
from tangentless.preprocessing import ZCA
from tangentless.solve import choose_landmarks, ridge_path, scaled_price, solve_nystroem
from tangentless.timing import environment

PRICES = (0.01, 0.1, 1.0, 10.0, 100.0)  # factors of the default C of KernelSVC
RIDGES = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
GAMMAS = (0.01, 0.1, 1.0, 10.0)  # over the number of features
TABLES = {"iris": datasets.load_iris, "wine": datasets.load_wine, "cancer": datasets.load_breast_cancer}
WHITENINGS = {"none": None, "ZCA()": ZCA(), "ZCA(epsilon=0.1)": ZCA(epsilon=0.1), "ZCA(patch=4)": ZCA(patch=4)}
SHARES = (0.1, 0.25, 0.5, 1.0)  # shares of the rows that are landmarks


def pieces(side: int = 64, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Squares of `side` pixels of three photographs, resized to `size`; the label is the photograph."""
    hopper = np.asarray(Image.open(Path(get_data_path(), "sample_data", "grace_hopper.jpg")).convert("RGB"))
    found, labels = [], []
    for label, picture in enumerate([*datasets.load_sample_images().images, hopper]):
        for top in range(0, picture.shape[0] - side + 1, side // 2):
            for left in range(0, picture.shape[1] - side + 1, side // 2):
                square = Image.fromarray(picture[top : top + side, left : left + side])
                found.append(np.asarray(square.resize((size, size))))
                labels.append(label)
    return np.stack(found), np.array(labels)


def split(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    order = np.random.default_rng(0).permutation(len(X))
    train = min(500, len(X) // 2)
    first, rest = order[:train], order[train : train + 300]
    return X[first], y[first], X[rest], y[rest]


def problems() -> dict[str, tuple[tl.Kernel, tuple[np.ndarray, ...]]]:
    digits, names = datasets.load_digits(return_X_y=True)
    X, y, Z, z = split(*pieces())
    zca = ZCA().fit(X)
    found = {
        "digits, myrtle5": (tl.kernel("myrtle5"), split(digits.reshape(-1, 8, 8, 1), names)),
        "digits, two Gaussian layers": (tl.kernel("conv3 gaussian pool2 conv3 gaussian globalpool normalize gaussian"),
                                      split(digits.reshape(-1, 8, 8, 1), names)),
        "photographs, myrtle5": (tl.kernel("myrtle5"), (X[:200], y[:200], Z[:200], z[:200])),
        "photographs whitened, myrtle5": (
            tl.kernel("myrtle5"), (zca.transform(X[:200]), y[:200], zca.transform(Z[:200]), z[:200])
        ),
        "digits as sequences": (tl.kernel("conv3 relu conv3 relu globalpool normalize relu"),
                                split(digits.reshape(-1, 8, 8), names)),
    }  # fmt: skip
    for name, load in TABLES.items():
        rows, labels = load(return_X_y=True)
        rows = StandardScaler().fit_transform(rows)
        found[f"{name}, relu relu relu"] = tl.kernel("relu relu relu"), split(rows, labels)
        found[f"{name}, Gaussian"] = Gaussian(1 / rows.shape[1]), split(rows, labels)
    return found


def study(k: tl.Kernel, X: np.ndarray, y: np.ndarray, Z: np.ndarray, z: np.ndarray) -> dict[str, object]:
    K, L = k(X), k(Z, X)
    price = scaled_price(K)
    scores = {}
    for times in PRICES:
        scores[f"{times:g}"] = tl.KernelSVC("precomputed", C=times * price).fit(K, y).score(L, z)
    codes = np.unique(y, return_inverse=True)[1]
    one_hot = np.eye(codes.max() + 1)[codes]
    path = ridge_path(K, one_hot, RIDGES)
    chosen = tl.KernelRidgeClassifier("precomputed", ridge="loo").fit(K, y)
    landmarks = {}
    for share in SHARES:
        rows = choose_landmarks(len(X), int(share * len(X)))
        beta = solve_nystroem(K[:, rows], K[np.ix_(rows, rows)], one_hot, 1e-4).coefficients
        landmarks[f"{share:g}"] = float(np.mean(np.unique(y)[(L[:, rows] @ beta).argmax(axis=1)] == z))
    return {
        "train": len(X),
        "test": len(Z),
        "spread of K": float(np.trace(K) / len(K) - K.mean()),
        "KernelSVC(C=1)": tl.KernelSVC("precomputed", C=1.0).fit(K, y).score(L, z),
        "KernelSVC, C times the default": scores,
        "ridge, leave-one-out accuracy": {f"{r:g}": float(a) for r, a in zip(RIDGES, path.accuracies, strict=True)},
        "ridge='loo'": {"ridge": chosen.ridge_, "leave-one-out": chosen.loo_score_, "test": chosen.score(L, z)},
        "test at the default ridge": tl.KernelRidgeClassifier("precomputed").fit(K, y).score(L, z),
        "landmarks, share of rows": landmarks,
    }


def gammas() -> dict[str, dict[str, float]]:
    """Test accuracy of ridge regression with a Gaussian kernel on standardised tables; keys: gamma × features."""
    found = {}
    for name, load in TABLES.items():
        rows, labels = load(return_X_y=True)
        X, y, Z, z = split(StandardScaler().fit_transform(rows), labels)
        found[name] = {
            f"{gamma:g}": tl.KernelRidgeClassifier(Gaussian(gamma / X.shape[1]), "loo").fit(X, y).score(Z, z)
            for gamma in GAMMAS
        }
    return found


def whitenings(train: int = 60, test: int = 200, draws: int = 5) -> dict[str, float]:
    """Test accuracy on 16×16 pieces of photographs when the whitening is fitted to few of them: a mean over draws."""
    X, y = pieces(size=16)
    found: dict[str, list[float]] = {name: [] for name in WHITENINGS}
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(X))
        first, rest = order[:train], order[train : train + test]
        for name, step in WHITENINGS.items():
            model = make_pipeline(step, tl.KernelRidgeClassifier("myrtle5")).fit(X[first], y[first])
            found[name].append(model.score(X[rest], y[rest]))
    return {name: round(float(np.mean(scores)), 3) for name, scores in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, object] = {"environment": environment(), "command": "python benchmarks/defaults.py"}
    for name, (k, data) in problems().items():
        results[name] = study(k, *data)
        print(name, json.dumps(results[name], indent=1), flush=True)
    results["Gaussian, gamma times features"] = gammas()
    print(json.dumps(results["Gaussian, gamma times features"], indent=1))
    results["whitening by 60 photographs"] = whitenings()
    print(json.dumps(results["whitening by 60 photographs"], indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
