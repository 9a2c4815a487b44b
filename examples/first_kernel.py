"""
First kernel
============

Write an architecture, call it on images, and get the exact kernel of the infinitely wide network of that shape.
"""

# %%
# An architecture is a list of layers, written as text. ``tl.kernel`` turns it into a function of two sets of images.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.datasets import load

k = tl.kernel("conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu")
digits = load("digits")  # 8×8 images that come with scikit-learn
order = np.argsort(digits.train.labels[:400], kind="stable")
X, y = digits.train.images[:400][order], digits.train.labels[:400][order]
K = k(X)
print(K.shape, K[0, 0], np.all(K == K.T))

# %%
# The matrix, with images sorted by class. No weight was trained and no label was used, but the ten blocks on the
# diagonal already show the ten classes.
figure, axes = plt.subplots(figsize=(6, 5))
apart = K[~np.eye(len(K), dtype=bool)]
image = axes.imshow(K, cmap="magma", vmin=np.percentile(apart, 1), vmax=np.percentile(apart, 99))
ends = np.searchsorted(y, np.arange(11))
axes.set_xticks((ends[1:] + ends[:-1]) / 2, range(10))
axes.set_yticks((ends[1:] + ends[:-1]) / 2, range(10))
axes.tick_params(length=0)
axes.set_title("k(x, z) of 400 digits, sorted by class")
figure.colorbar(image)
plt.show()

# %%
# The neighbours of an image are those with the largest entries in its row.
queries = [5, 130, 250, 390]
figure, rows = plt.subplots(len(queries), 8, figsize=(8, 4.2))
for query, row in zip(queries, rows, strict=True):
    nearest = np.argsort(-K[query])[:8]  # the first one is the image itself
    for place, (axes, at) in enumerate(zip(row, nearest, strict=True)):
        axes.imshow(X[at, ..., 0], cmap="gray_r")
        axes.set_title("query" if place == 0 else f"{K[query, at]:.4f}", fontsize=8)
        axes.axis("off")
plt.show()

# %%
# A classifier takes the same text. Its leave-one-out accuracy comes with the fit, in closed form.
model = tl.KernelRidgeClassifier(k, ridge=1e-4).fit(X, y)
print(f"leave-one-out {model.loo_score_:.1%}, test {model.score(digits.test.images, digits.test.labels):.1%}")
