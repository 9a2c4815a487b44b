"""
Kernel against network
======================

One architecture gives both: the kernel of the infinitely wide network, and a network of finite width in PyTorch. This
example needs the extra ``tangentless[networks]``.
"""

# %%
# At random weights the inner products of a network's features approach the kernel. The error falls like the root of
# the width.
import matplotlib.pyplot as plt
import numpy as np
import torch

import tangentless as tl
from tangentless.datasets import load
from tangentless.networks import Machine, Ramp, Recipe, predict, train

torch.set_num_threads(1)  # such small networks gain nothing from more
body = "conv3 relu conv3 relu pool2 conv3 relu globalpool normalize"
architecture = tl.Architecture.parse(body)
digits = load("digits")
order = np.random.default_rng(0).permutation(1000)
X, y = digits.train.images[order] / np.float32(16), digits.train.labels[order]
X_test, y_test = digits.test.images / np.float32(16), digits.test.labels

exact = tl.kernel(body)(X[:24])
widths = [16, 32, 64, 128, 256]
errors = []
for width in widths:
    tries = [architecture.to_torch(width=width, classes=10, shape=X.shape[1:], seed=seed) for seed in range(3)]
    errors.append(np.mean([np.abs(np.asarray(network.kernel(X[:24])) - exact).mean() for network in tries]))
figure, axes = plt.subplots(figsize=(6.2, 4))
axes.loglog(widths, errors, "o-", base=2, label="mean error of three networks")
axes.loglog(widths, errors[0] * np.sqrt(widths[0] / np.array(widths)), "--", color="grey", base=2, label="width^(-1/2)")
axes.set_xticks(widths, widths)
axes.set_xlabel("channels")
axes.set_ylabel("error of K")
axes.legend()
plt.show()

# %%
# Training: the same images for both. The kernel has nothing to tune but a ridge, which leave-one-out picks.
recipe = Recipe(
    "digits",
    f"{body} relu",
    width=32,
    epochs=20,
    batch_norm=True,
    learning_rate=0.2,
    batch=32,
    schedule=Ramp(),
    inputs="pixels",
)
sizes = [50, 100, 200]
kernel_scores, network_scores = [], []
for size in sizes:
    model = tl.KernelRidgeClassifier(f"{body} relu", ridge="loo").fit(X[:size], y[:size])
    kernel_scores.append(100 * model.score(X_test, y_test))
    network = architecture.to_torch(width=32, classes=10, shape=X.shape[1:], batch_norm=True, seed=0)
    trained = train(network, X[:size], y[:size], recipe, machine=Machine("cpu"))
    network_scores.append(100 * np.mean(predict(trained.network, X_test) == y_test))
figure, axes = plt.subplots(figsize=(6.2, 4))
axes.semilogx(sizes, kernel_scores, "o-", label="kernel, exact")
axes.semilogx(sizes, network_scores, "o-", label="network, 32 channels, 20 epochs")
axes.set_xticks(sizes, sizes)
axes.minorticks_off()
axes.set_xlabel("training images")
axes.set_ylabel("test accuracy, %")
axes.legend()
plt.show()
