"""
Kernels on frozen embeddings
============================

Take the features of a network that was trained on something else, freeze it, and put a kernel on top. It costs almost
nothing, and here it beats a linear probe from a hundred labels on.
"""

# %%
# The embedding here is a small network of scikit-learn, trained on the digits 0 to 4. The new task, the digits 5 to 9,
# is one it has never seen. With your own data, ``embed`` is a pretrained vision or text model.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tangentless as tl

pixels, labels = load_digits(return_X_y=True)
pixels = pixels / 16
old, new = labels < 5, labels >= 5
network = MLPClassifier((128, 64), max_iter=200, tol=1e-3, random_state=0).fit(pixels[old], labels[old])


def embed(rows):
    """Activations of the last hidden layer."""
    for weights, bias in zip(network.coefs_[:-1], network.intercepts_[:-1], strict=True):
        rows = np.maximum(rows @ weights + bias, 0)
    return rows


E5, y5 = embed(pixels[new]), labels[new]
order = np.random.default_rng(0).permutation(len(E5))
train, test = order[:300], order[300:]

# %%
# Vectors (N, C) need no convolutions: ``"relu relu"`` is the kernel of a wide fully connected network on top of the
# embedding. A Gaussian kernel whose width is the median distance is the usual alternative.
sizes = [10, 20, 50, 100, 200, 300]
scaled = StandardScaler().fit(E5[train])
methods = {
    "wide network: normalize relu relu": lambda: tl.KernelRidgeClassifier("normalize relu relu", ridge="loo"),
    "Gaussian, median width": lambda: tl.KernelRidgeClassifier(
        tl.classical.Gaussian.median(scaled.transform(E5[train])), ridge="loo"
    ),
    "linear probe": lambda: make_pipeline(LogisticRegression(max_iter=500)),
}
figure, axes = plt.subplots(figsize=(6.6, 4.2))
for name, make in methods.items():
    scores = []
    for size in sizes:
        model = make().fit(scaled.transform(E5[train[:size]]), y5[train[:size]])
        scores.append(100 * model.score(scaled.transform(E5[test]), y5[test]))
    axes.semilogx(sizes, scores, "o-", label=name)
axes.set_xticks(sizes, sizes)
axes.minorticks_off()
axes.set_xlabel("labelled images of the new task")
axes.set_ylabel("test accuracy, %")
axes.legend()
plt.show()

# %%
# ``search`` compares kernels, ridges and mixtures by leave-one-out, without test data.
found = tl.search(
    ["normalize relu", "normalize relu relu", "normalize gaussian", tl.classical.Linear()],
    scaled.transform(E5[train]),
    y5[train],
    criterion="loo",
)
print(found)
