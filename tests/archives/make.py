"""How the archives beside this file were made, with the code of version 0.1.0 (commit 8623537) on the path.

git worktree add /tmp/old 8623537 && PYTHONPATH=/tmp/old/src python tests/archives/make.py FOLDER
"""

import contextlib
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.pipeline import make_pipeline

from tangentless.estimators import KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC
from tangentless.models import save_model
from tangentless.networks.checkpoint import save_checkpoint
from tangentless.preprocessing import ZCA, Standardize
from tangentless.solve import NotConverged, solve_conjugate


def make(folder):
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4, 1), dtype=np.uint8)
    labels = np.arange(12) % 3
    options = {"kernel": "conv3 relu globalpool normalize relu", "backend": "reference", "precision": "float64"}
    whitened = make_pipeline(Standardize(), ZCA(1e-2), KernelRidgeClassifier(ridge=1e-2, flips=True, **options))
    models = {
        "pipeline": (whitened, labels),
        "regressor": (KernelRidgeRegressor(ridge=1e-2, **options), images.mean(axis=(1, 2, 3))),
        "svc": (KernelSVC(**options), labels),
    }
    expected = {"images": images}
    for name, (model, targets) in models.items():
        save_model(folder / f"{name}_0.1.0.npz", model.fit(images, targets))
        expected[name] = (model.predict if name == "regressor" else model.decision_function)(images)

    torch.manual_seed(0)
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(torch.ones(1, 3)).square().sum().backward()
    optimizer.step()
    belongs_to = {"seed": 3, "recipe": {"epochs": 2}}
    save_checkpoint(folder / "network_0.1.0.npz", belongs_to, [{"loss": 0.5}], network, optimizer)
    expected["weight"] = network.weight.detach().numpy()
    expected["momentum"] = optimizer.state[network.weight]["momentum_buffer"].numpy()

    K = np.exp(-np.square(np.subtract.outer(np.arange(20.0), np.arange(20.0))) / 8)
    with contextlib.suppress(NotConverged):
        solve_conjugate(K, np.arange(20.0), 1e-3, landmarks=0, most_steps=4, checkpoint=folder / "conjugate_0.1.0.npz")
    np.savez_compressed(folder / "expected_0.1.0.npz", **expected)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
