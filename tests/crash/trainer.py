"""A training run to be killed: `python trainer.py CHECKPOINT` dies in the middle of an epoch, after three others."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tangentless.networks import Machine, Recipe, Steps, network_of, train, training

RECIPE = Recipe(
    "digits",
    "conv3 relu pool2 conv3 relu globalpool normalize relu",
    8,
    epochs=12,
    batch=16,
    batch_norm=True,
    schedule=Steps((6,), 0.1),
    flips=True,
    crop=1,
    cutout=3,
)


def run(checkpoint: Path | None, **options: object) -> dict[str, np.ndarray]:
    """The weights and statistics after training."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(5)
    images, labels = generator.standard_normal((120, 8, 8, 1)), generator.integers(0, 10, 120)
    network = network_of(RECIPE, (8, 8, 1), 10, seed=3)
    train(
        network,
        images,
        labels,
        RECIPE,
        test=(images[:20], labels[:20]),
        seed=3,
        machine=Machine("cpu"),
        checkpoint=checkpoint,
        checkpoint_seconds=0.0,
        **options,
    )
    return {name: value.numpy() for name, value in network.state_dict().items()}


def dying(augment: Any) -> Any:
    """The function, in a process that ends at the 30th batch: within the fourth epoch of eight batches each."""
    batches = itertools.count(1)

    def augment_or_die(*arguments: Any) -> Any:
        if next(batches) == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return augment(*arguments)

    return augment_or_die


if __name__ == "__main__":
    training.augment = dying(training.augment)
    run(Path(sys.argv[1]))
