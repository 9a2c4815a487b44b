"""
A nonlinearity of your own
==========================

Define an activation. Its dual function, the kernel, model files and the text form follow from it.
"""

# %%
# Swish, x / (1 + exp(-x)), scaled so that its mean square at standard Gaussian inputs is 1.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.datasets import load


@tl.register
class Swish(tl.Nonlinearity):
    """The activation x / (1 + exp(-x))."""

    name = "swish"

    def activation(self, preactivation):
        """Of Gaussian inputs."""
        return preactivation / (1 + np.exp(-preactivation)) / 0.5962


# %%
# The dual f(c) is the covariance of the activation at two standard Gaussian inputs of correlation c. It is computed as
# a series of Hermite polynomials. A mean over random inputs agrees with it.
c = np.linspace(-1, 1, 201)
u, v = np.random.default_rng(0).standard_normal((2, 100_000))
some = np.linspace(-1, 1, 11)
sampled = [np.mean(Swish().activation(u) * Swish().activation(x * u + np.sqrt(1 - x * x) * v)) for x in some]
figure, axes = plt.subplots(figsize=(6.4, 4.2))
for layer, name in ((Swish(), "swish"), (tl.ReLU(), "relu"), (tl.GELU(), "gelu"), (tl.Tanh(), "tanh")):
    axes.plot(c, layer.dual(c), label=name)
axes.plot(some, sampled, "o", color="C0", markersize=4, label="swish, 100,000 samples")
axes.set_xlabel("correlation of the inputs, c")
axes.set_ylabel("dual function, f(c)")
axes.legend()
plt.show()

# %%
# The text form knows the layer now, and so do estimators and the command line.
digits = load("digits")
X, y, X_test, y_test = digits.train.images[:300], digits.train.labels[:300], digits.test.images, digits.test.labels
scores = {}
for name in ("relu", "swish", "gelu", "tanh"):
    text = f"conv3 {name} conv3 {name} pool2 conv3 {name} globalpool normalize {name}"
    scores[name] = tl.KernelRidgeClassifier(text, ridge=1e-4).fit(X, y).score(X_test, y_test)
figure, axes = plt.subplots(figsize=(6.4, 2.8))
bars = axes.barh(list(scores), [100 * (1 - score) for score in scores.values()])
axes.bar_label(bars, fmt="%.1f")
axes.set_xlabel("test errors, %")
plt.show()
