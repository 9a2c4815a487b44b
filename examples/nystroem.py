"""
Nyström: landmarks instead of the whole matrix
==============================================

Predictions written with m of the n training images need n m kernel entries instead of n². This is how to go beyond
what memory holds.
"""

# %%
# ``landmarks=m`` chooses them by variance; ``landmarks_by="random"`` draws them.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.datasets import load

kernel = "conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu"
digits = load("digits")
X, y = digits.train.images[:600], digits.train.labels[:600]
X_test, y_test = digits.test.images, digits.test.labels

counts = [20, 50, 100, 200]
scores = {way: [] for way in ("variance", "random")}
for count in counts:
    for way in scores:
        model = tl.KernelRidgeClassifier(kernel, ridge=1e-4, landmarks=count, landmarks_by=way).fit(X, y)
        scores[way].append(100 * model.score(X_test, y_test))
exact = 100 * tl.KernelRidgeClassifier(kernel, ridge=1e-4).fit(X, y).score(X_test, y_test)

# %%
# A third of the images as landmarks is as good as all of them here. Of n images and m landmarks, n m entries of the
# kernel are computed and held. The whole matrix has n (n + 1) / 2 entries to compute and n² to hold. At n = 600 the
# gain is small; at a million images and 20,000 landmarks it is a factor of 50 in memory.
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8))
for way, values in scores.items():
    left.semilogx(counts, values, "o-", label="by variance" if way == "variance" else "at random")
left.axhline(exact, color="grey", linestyle="--", label="all 600 images")
left.set_ylabel("test accuracy, %")
right.semilogx(counts, [len(X) * count / 1000 for count in counts], "o-", color="C2", label="landmarks")
right.axhline(len(X) ** 2 / 1000, color="grey", linestyle="--", label="all 600 images")
right.set_ylabel("kernel entries held, thousands")
for axes in (left, right):
    axes.set_xlabel("landmarks")
    axes.set_xticks(counts, counts)
    axes.minorticks_off()
    axes.legend()
figure.tight_layout()
plt.show()

# %%
# The landmarks that variance chooses first are unlike each other.
model = tl.KernelRidgeClassifier(kernel, ridge=1e-4, landmarks=20).fit(X, y)
figure, axes = plt.subplots(2, 10, figsize=(10, 2.3))
for place, at in zip(axes.flat, model.landmarks_, strict=True):
    place.imshow(X[at, ..., 0], cmap="gray_r")
    place.axis("off")
plt.show()
print(f"leave-one-out {model.loo_score_:.1%}, in closed form with landmarks too")
print(f"classes among twenty landmarks: {np.unique(y[model.landmarks_]).tolist()}")
