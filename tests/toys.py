"""A small data set like CIFAR-10: each class is a coarse pattern, with noise added to every image."""

import numpy as np

from tangentless.datasets import Dataset, Split

CLASSES = 4


def toy(train=80, test=30, side=4, channels=3, name="cifar10", seed=0):
    rng = np.random.default_rng(seed)
    patterns = rng.integers(40, 216, (CLASSES, side // 2, side // 2, channels)).repeat(2, axis=1).repeat(2, axis=2)

    def split(count):
        labels = rng.permutation(np.arange(count) % CLASSES)
        images = patterns[labels] + rng.normal(0, 45, (count, side, side, channels))
        return Split(images.clip(0, 255).astype(np.uint8), labels.astype(np.int64))

    hashes = {"made here": f"{train} {test} {side} {channels} {seed}"}
    return Dataset(name, split(train), split(test), tuple(map(str, range(CLASSES))), hashes)
