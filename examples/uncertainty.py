"""
Uncertainty
===========

The kernel of an infinitely wide network is the covariance of a Gaussian process. Its posterior says how sure it is.
"""

# %%
# Regression: how far is a digit rotated? The process sees one 3 at thirteen angles between -90 and 90 degrees, and is
# asked about all angles.
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate

import tangentless as tl
from tangentless.datasets import load
from tangentless.solve import calibration

kernel = "conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu"
digits = load("digits")
three = digits.train.images[np.flatnonzero(digits.train.labels == 3)[0], ..., 0].astype(float)


def rotated(angles):
    """Images of the digit, turned by so many degrees."""
    return np.stack([rotate(three, angle, reshape=False, order=1) for angle in angles])[..., None]


seen, asked = np.linspace(-90, 90, 13), np.linspace(-170, 170, 171)
process = tl.GaussianProcessRegressor(kernel, noise="mle").fit(rotated(seen), seen)
mean, deviation = process.predict(rotated(asked), return_std=True)

figure, axes = plt.subplots(figsize=(7, 4))
axes.fill_between(asked, mean - 2 * deviation, mean + 2 * deviation, alpha=0.25, label="mean ± 2 deviations")
axes.plot(asked, mean)
axes.plot(asked, asked, color="grey", linestyle="--", linewidth=1, label="truth")
axes.plot(seen, seen, "o", color="black", markersize=4, label="training images")
axes.set_xlabel("true angle")
axes.set_ylabel("predicted angle")
axes.legend()
plt.show()

# %%
# Deviations are small between the angles that were seen and grow outside them.
#
# Classification: ``GaussianProcessClassifier`` averages the softmax over the posterior;
# ``KernelRidgeClassifier.predict_proba`` is a softmax at a temperature fitted to leave-one-out values. A reliability
# diagram compares confidence with accuracy: both should lie on the diagonal.
X, y = digits.train.images[:200], digits.train.labels[:200]
X_test, y_test = digits.test.images[:400], digits.test.labels[:400]
models = {"Dirichlet process": tl.GaussianProcessClassifier(kernel), "temperature": tl.KernelRidgeClassifier(kernel)}
found = {name: calibration(model.fit(X, y).predict_proba(X_test), y_test) for name, model in models.items()}
figure, axes = plt.subplots(figsize=(5.4, 4.6))
axes.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
for name, score in found.items():
    some = score.counts > 0
    axes.plot(score.confidences[some], score.accuracies[some], "o-", label=f"{name}: log loss {score.nll:.3f}")
axes.set_xlabel("confidence")
axes.set_ylabel("accuracy")
axes.legend()
plt.show()

# %%
# The least certain test images, by the entropy of their probabilities.
p = models["Dirichlet process"].predict_proba(X_test)
entropy = -(p * np.log(p)).sum(axis=1)
figure, axes = plt.subplots(2, 8, figsize=(10, 3.2))
for place, at in zip(axes.flat, np.argsort(-entropy), strict=False):
    first, second = np.argsort(-p[at])[:2]
    place.imshow(X_test[at, ..., 0], cmap="gray_r")
    place.set_title(f"{first} ({p[at, first]:.2f})\n{second} ({p[at, second]:.2f})", fontsize=8)
    place.axis("off")
plt.show()
