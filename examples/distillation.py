"""
Gradients and distillation
==========================

Kernels have gradients with respect to images. They show what a prediction looks at, and they can learn a training set
of ten images.
"""

# %%
# Saliency: the gradient of the winning class's value by every pixel.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.attacks import pgd
from tangentless.datasets import load

kernel = "conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu"
digits = load("digits")
X, y = digits.train.images[:200] / 16, digits.train.labels[:200]
X_test, y_test = digits.test.images / 16, digits.test.labels
model = tl.KernelRidgeClassifier(kernel, ridge=1e-3).fit(X, y)
shown = [int(np.flatnonzero(y_test == digit)[0]) for digit in range(8)]
saliency = model.saliency(X_test[shown])
figure, rows = plt.subplots(2, 8, figsize=(10, 2.8))
for upper, lower, at, slopes in zip(*rows, shown, saliency, strict=True):
    upper.imshow(X_test[at, ..., 0], cmap="gray_r")
    lower.imshow(slopes[..., 0], cmap="RdBu_r", vmin=-abs(slopes).max(), vmax=abs(slopes).max())
    upper.axis("off")
    lower.axis("off")
figure.suptitle("Digits, and what raises (red) or lowers (blue) the value of their class")
plt.show()

# %%
# Distillation learns ten images whose classifier is best on all training images.
found = tl.distill(X, y, 10, kernel, steps=50, batch=100, rate=0.05)
before = tl.KernelRidgeClassifier(kernel, ridge=1e-6).fit(found.before, found.labels)
scores = before.score(X_test, y_test), found.model.score(X_test, y_test)
print("test accuracy of ten images: {:.1%} as they were, {:.1%} as learned".format(*scores))
figure, rows = plt.subplots(2, 10, figsize=(10, 2.5))
for row, images, name in zip(rows, (found.before, found.images), ("before", "after"), strict=True):
    for axes, image in zip(row, images, strict=True):
        axes.imshow(image[..., 0], cmap="gray_r")
        axes.set_xticks([])
        axes.set_yticks([])
    row[0].set_ylabel(name)
plt.show()

# %%
# The loss on batches of training images, step by step.
figure, axes = plt.subplots(figsize=(6.4, 3.2))
axes.semilogy(found.losses)
axes.set_xlabel("step")
axes.set_ylabel("loss")
plt.show()

# %%
# The same gradients move images across the boundary between classes. Pixels are in [0, 1] here.
moved = pgd(model, X_test[shown], y_test[shown], eps=0.1, steps=5)
figure, axes = plt.subplots(1, 8, figsize=(10, 1.9))
for place, image, digit in zip(axes, moved, model.predict(moved), strict=True):
    place.imshow(image[..., 0], cmap="gray_r")
    place.set_title(f"read as {digit}", fontsize=9)
    place.axis("off")
plt.show()
