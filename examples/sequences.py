"""
Sequences
=========

Arrays (N, L, C) are sequences of vectors. Convolutions along the axis and a global pool find a motif wherever it is.
"""

# %%
# Each made-up signal holds one of three motifs at a random place, in noise: a rising chirp, a falling chirp, or a burst
# of one frequency.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl

generator = np.random.default_rng(0)
t = np.linspace(0, 1, 32)
sweep = np.sin(2 * np.pi * (2 * t + 4 * t**2))
motifs = {"rising": sweep, "falling": sweep[::-1], "steady": np.sin(2 * np.pi * 6 * t)}


def signals(count, length=64, noise=0.4):
    """Sequences (N, L, 1) and the motifs they hold."""
    labels = generator.integers(0, 3, count)
    values = noise * generator.standard_normal((count, length))
    for row, label in zip(values, labels, strict=True):
        start = generator.integers(0, length - 31)
        row[start : start + 32] += list(motifs.values())[label]
    return values[..., None], labels


X, y = signals(200)
X_test, y_test = signals(300)
figure, rows = plt.subplots(3, 2, figsize=(9, 4), sharex=True, sharey=True)
for label, (row, name) in enumerate(zip(rows, motifs, strict=True)):
    for axes, at in zip(row, np.flatnonzero(y == label)[:2], strict=True):
        axes.plot(X[at, :, 0], linewidth=0.9)
        axes.set_title(name, fontsize=9)
figure.tight_layout()
plt.show()

# %%
# Two kernels that look at windows, and two that read a sequence as one long vector and so know no shifts.
kernels = {
    "conv9 relu globalpool normalize relu": None,
    "conv9 relu pool4 conv5 relu globalpool normalize relu": None,
    "Gaussian of the whole vector": tl.classical.Gaussian.median(X.reshape(len(X), -1)),
    "NTK of the whole vector": tl.classical.NTK(depth=3),
}
sizes = [30, 60, 120, 200]
figure, axes = plt.subplots(figsize=(7, 4.2))
for name, kernel in kernels.items():
    scores = []
    for size in sizes:
        model = tl.KernelRidgeClassifier(kernel or name, ridge="loo").fit(X[:size], y[:size])
        scores.append(100 * model.score(X_test, y_test))
    axes.semilogx(sizes, scores, "o-", label=name)
axes.set_xticks(sizes, sizes)
axes.minorticks_off()
axes.set_xlabel("training sequences")
axes.set_ylabel("test accuracy, %")
axes.legend(fontsize=8)
plt.show()
