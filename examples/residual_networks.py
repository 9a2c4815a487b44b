"""
Residual networks
=================

Sums and residual branches are layers like any other. In deep kernels they keep images apart.
"""

# %%
# ``residual(A)`` puts the features of A beside those that came in. ``resnet8`` and ``resnet14`` are names of whole
# networks.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.datasets import load

print(tl.Architecture.parse("conv3 residual(relu conv3 relu conv3) relu globalpool"))
digits = load("digits")
X, y = digits.train.images[:150], digits.train.labels[:150]
X_test, y_test = digits.test.images[:300], digits.test.labels[:300]


def plain(blocks):
    """A chain of convolutions."""
    return f"conv3 relu {'conv3 relu conv3 relu ' * blocks}globalpool normalize"


def residual(blocks):
    """The same convolutions in residual blocks."""
    return f"conv3 {'residual(relu conv3 relu conv3) ' * blocks}relu globalpool normalize"


# %%
# To a deep plain chain all images look alike: at eight blocks the entries of K spread a third as much as at two, and
# test errors rise. With residual branches the spread stays.
depths = [1, 2, 4, 8]
apart = ~np.eye(len(X), dtype=bool)
spread, errors = {}, {}
for name, build in {"plain": plain, "residual": residual}.items():
    spread[name], errors[name] = [], []
    for blocks in depths:
        k = tl.kernel(build(blocks))
        K = k(X)
        model = tl.KernelRidgeClassifier("precomputed", ridge="loo").fit(K, y)
        spread[name].append(K[apart].std())
        errors[name].append(100 * (1 - model.score(k(X_test, X), y_test)))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8))
for name in spread:
    left.plot(depths, spread[name], "o-", label=name)
    right.plot(depths, errors[name], "o-", label=name)
left.set_ylabel("standard deviation of the entries of K")
right.set_ylabel("test errors, %")
for axes in (left, right):
    axes.set_xlabel("blocks of two convolutions")
    axes.set_xticks(depths, depths)
    axes.legend()
figure.tight_layout()
plt.show()

# %%
# A stride is cheap: it needs every second offset only, in its own layer and in all layers before it. Elements are
# nonlinearities evaluated for a pair of 32×32 images.
names = ["myrtle5", "myrtle7", "myrtle10", "resnet8", "resnet14"]
work = [tl.kernel(name).elements((32, 32, 3)) for name in names]
figure, axes = plt.subplots(figsize=(6.4, 2.8))
bars = axes.barh(names, np.array(work) / 1e6)
axes.bar_label(bars, fmt="%.2f")
axes.set_xlabel("million elements for a pair of 32×32 images")
plt.show()
