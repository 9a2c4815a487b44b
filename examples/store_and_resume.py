"""
Store and resume
================

A matrix in a store outlives the process. A finished tile stays, and the same call continues where it stopped.
"""

# %%
# Stop a run on purpose: the progress function raises after about half of the tiles.
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.datasets import load
from tangentless.gram import status, verify

k = tl.kernel("conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu")
X = load("digits").train.images
store = Path(tempfile.mkdtemp()) / "digits.zarr"


class PowerCutError(Exception):
    """Stands in for whatever ends a process."""


def cut_in_the_middle(snapshot):
    """Called after every tile."""
    if snapshot.tiles_done > snapshot.tiles // 2:
        raise PowerCutError


try:
    tl.gram(k, X[:600], store=store, tile=100, progress=cut_in_the_middle)
except PowerCutError:
    found = status(store)
    print(f"{found.tiles_done} of {found.tiles} tiles are finished")


# %%
# Tiles are files with a checksum each. Of a symmetric matrix, those on and above the diagonal are stored.
def draw_tiles(axes, title, tiles=6):
    """Which tiles are there."""
    there = np.zeros((tiles, tiles))
    for row in range(tiles):
        for column in range(row, tiles):
            there[row, column] = 0.3 + 0.7 * (store / "kernel" / "c" / str(row) / str(column)).exists()
    axes.imshow(there, cmap="Blues", vmin=0, vmax=1.2)
    axes.set_xticks(np.arange(tiles + 1) - 0.5, np.arange(tiles + 1) * 100)
    axes.set_yticks(np.arange(tiles + 1) - 0.5, np.arange(tiles + 1) * 100)
    axes.grid(color="white")
    axes.set_title(title)


figure, axes = plt.subplots(1, 3, figsize=(11, 3.6))
draw_tiles(axes[0], "after the power cut")
K = tl.gram(k, X[:600], store=store, progress=False)  # the same call, again
draw_tiles(axes[1], "after the same call again")
K = tl.gram(k, X[:800], store=store, extend=True, progress=False)  # more images: only new tiles are computed
draw_tiles(axes[2], "extended to 800 images", tiles=8)
plt.show()

# %%
# ``verify`` reads every byte. Slices of the matrix read the tiles they touch.
found = verify(store)
print(f"{found.tiles_checked} tiles checked, all good: {found.good}")
print(K.shape, K[3, :4])

# %%
# Estimators take stores too. A second fit with another ridge computes no kernel entry.
y = load("digits").train.labels[:800]
for ridge in (1e-4, 1e-2, 1.0):
    model = tl.KernelRidgeClassifier(k, ridge=ridge, store=store).fit(X[:800], y)
    print(f"ridge {ridge:g}: leave-one-out {model.loo_score_:.1%}")
