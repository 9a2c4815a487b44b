"""
Novelty, and which images to label
==================================

The posterior variance needs no labels. It finds images unlike all training images, and it chooses which images are
worth a label.
"""

# %%
# Train on 300 digits. Then measure the novelty of new digits, of digits with shuffled pixels, and of noise. A novelty
# of 1 is that of a typical training image as seen by all others.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.datasets import load

kernel = "conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu"
digits = load("digits")
X, y = digits.train.images.astype(float), digits.train.labels
X_test, y_test = digits.test.images.astype(float), digits.test.labels
generator = np.random.default_rng(0)

process = tl.GaussianProcessClassifier(kernel).fit(X[:300], y[:300])
shuffled = generator.permuted(X_test[:200].reshape(200, -1), axis=1).reshape(200, 8, 8, 1)
kinds = {"digits": X_test[:200], "shuffled pixels": shuffled, "noise": generator.uniform(0, 16, (200, 8, 8, 1))}
figure, axes = plt.subplots(figsize=(7, 3.6))
for name, images in kinds.items():
    axes.hist(np.log10(process.novelty(images)), bins=30, alpha=0.6, label=name)
axes.set_xlabel("novelty, power of 10")
axes.set_ylabel("images")
axes.legend()
plt.show()

# %%
# Active choice: of a pool of 400 images without labels, which 60 should be labelled? ``choose`` takes the image of the
# largest variance, then the one of the largest variance given the first, and so on.
pool, labels = X[:400], y[:400]
chosen = tl.choose(kernel, pool, 60)
print("labels of the first ten:", labels[chosen[:10]])
figure, axes = plt.subplots(2, 10, figsize=(10, 2.4))
for place, at in zip(axes.flat, chosen, strict=False):
    place.imshow(pool[at, ..., 0], cmap="gray_r")
    place.axis("off")
figure.suptitle("The first twenty images to label")
plt.show()

# %%
# Accuracy with chosen labels, beside ten random choices of the same size. The kernel matrix is computed once.
k = tl.kernel(kernel)
K, K_test = k(pool), k(X_test, pool)
counts = [10, 20, 30, 40, 50, 60]


def accuracy(rows):
    """Of a classifier that is trained on some rows of the pool."""
    model = tl.KernelRidgeClassifier("precomputed", ridge=1e-4).fit(K[np.ix_(rows, rows)], labels[rows])
    return model.score(K_test[:, rows], y_test)


random = np.array([[accuracy(order[:n]) for n in counts] for order in (generator.permutation(400) for _ in range(10))])
figure, axes = plt.subplots(figsize=(6.4, 4))
axes.plot(counts, [accuracy(chosen[:n]) for n in counts], "o-", label="chosen by variance")
axes.plot(counts, random.mean(axis=0), "o-", label="random, mean of ten")
axes.fill_between(counts, random.min(axis=0), random.max(axis=0), alpha=0.2, color="C1", label="random, range")
axes.set_xlabel("labelled images")
axes.set_ylabel("test accuracy")
axes.legend()
plt.show()
