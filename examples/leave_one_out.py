"""
Leave-one-out and the ridge
===========================

One factorisation answers what every training image would be predicted as without itself. This picks the ridge without
held-out data, and finds the images that contradict their labels.
"""

# %%
# A kernel matrix of 500 digits, of which 25 get a wrong label.
import matplotlib.pyplot as plt
import numpy as np

import tangentless as tl
from tangentless.datasets import load
from tangentless.solve import ridge_path, solve_ridge

digits = load("digits")
X, X_test, y_test = digits.train.images[:500], digits.test.images, digits.test.labels
generator = np.random.default_rng(0)
spoilt = generator.choice(500, 25, replace=False)
y = digits.train.labels[:500].copy()
y[spoilt] = (y[spoilt] + generator.integers(1, 10, 25)) % 10

k = tl.kernel("conv3 relu conv3 relu pool2 conv3 relu globalpool normalize relu")
K, K_test = k(X), k(X_test, X)
Y = np.eye(10)[y]

# %%
# ``ridge_path`` scores many ridges from one eigendecomposition. The test error is drawn beside it for comparison only;
# nothing is chosen by it.
ridges = np.logspace(-7, 2, 40)
path = ridge_path(K, Y, ridges)
test = [np.mean((np.eye(10)[y_test] - K_test @ np.linalg.solve(K + ridge * np.eye(500), Y)) ** 2) for ridge in ridges]
best = path.best()
figure, axes = plt.subplots(figsize=(6.4, 4))
axes.loglog(ridges, path.squared_errors, label="leave-one-out, labels with mistakes")
axes.loglog(ridges, test, label="test images, right labels")
axes.axvline(best, color="grey", linestyle="--", label=f"best by leave-one-out: {best:.1e}")
axes.set_xlabel("ridge")
axes.set_ylabel("squared error")
axes.legend()
plt.show()

# %%
# The leave-one-out value of an image for its own label says how well all other images agree with that label. The
# lowest ones are suspects.
solution = solve_ridge(K, Y, best)
agreement = solution.leave_one_out[np.arange(500), y] - np.where(Y == 1, -np.inf, solution.leave_one_out).max(axis=1)
suspects = np.argsort(agreement)[:30]
print(f"{np.isin(suspects, spoilt).sum()} of the 25 wrong labels are among the 30 suspects")
figure, axes = plt.subplots(3, 10, figsize=(10, 3.6))
for place, at in zip(axes.flat, suspects, strict=True):
    place.imshow(X[at, ..., 0], cmap="gray_r")
    place.set_title(f"label {y[at]}", fontsize=8, color="tab:red" if at in spoilt else "black")
    place.axis("off")
plt.show()

# %%
# Labels in red are the ones that were spoilt. Estimators do all of this: ``ridge="loo"`` picks the ridge by accuracy.
model = tl.KernelRidgeClassifier(k, ridge="loo").fit(X, y)
print(f"ridge {model.ridge_:.1e}, leave-one-out {model.loo_score_:.1%}, test {model.score(X_test, y_test):.1%}")
