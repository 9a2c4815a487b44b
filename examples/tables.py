"""
Tables
======

Rows of features are vectors (N, C). Kernels of wide fully connected networks, tangent kernels and Gaussians share one
interface, and scikit-learn's tools apply.
"""

# %%
# Three tables that come with scikit-learn, standardised inside the pipeline.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tangentless as tl
from tangentless.classical import NTK, Gaussian

tables = {
    "iris": load_iris(return_X_y=True),
    "wine": load_wine(return_X_y=True),
    "breast cancer": tuple(values[::2] for values in load_breast_cancer(return_X_y=True)),  # every other row, for speed
}
models = {
    "wide network": lambda features: tl.KernelRidgeClassifier("relu relu relu", ridge="loo"),
    "NTK, depth 3": lambda features: tl.KernelRidgeClassifier(NTK(depth=3), ridge="loo"),
    "Gaussian": lambda features: tl.KernelRidgeClassifier(Gaussian(1 / features), ridge="loo"),
    "NTK, support vectors": lambda features: tl.KernelSVC(NTK(depth=3)),
    "random forest": lambda features: RandomForestClassifier(30, random_state=0),
}
folds = StratifiedKFold(5, shuffle=True, random_state=0)
scores = {
    (table, name): 100 * cross_val_score(make_pipeline(StandardScaler(), make(X.shape[1])), X, y, cv=folds)
    for table, (X, y) in tables.items()
    for name, make in models.items()
}

# %%
# Errors in five folds, mean and standard error.
figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True)
for place, table in zip(axes, tables, strict=True):
    values = [100 - scores[table, name] for name in models]
    means, errors = [v.mean() for v in values], [v.std() / np.sqrt(len(v)) for v in values]
    place.barh(list(models), means, xerr=errors, color=[f"C{n}" for n in range(len(models))])
    place.set_title(table)
    place.set_xlabel("errors, %")
    place.invert_yaxis()
figure.tight_layout()
plt.show()

# %%
# Regression works in the same way, and a Gaussian process adds deviations: one feature of iris from the other three.
X, _ = tables["iris"]
X = StandardScaler().fit_transform(X)
train, test = np.arange(0, 150, 2), np.arange(1, 150, 2)
process = tl.GaussianProcessRegressor("relu relu", noise="mle").fit(X[train, :3], X[train, 3])
mean, deviation = process.predict(X[test, :3], return_std=True, include_noise=True)
figure, axes = plt.subplots(figsize=(5.2, 4.6))
axes.errorbar(X[test, 3], mean, 2 * deviation, fmt="o", markersize=3, linewidth=0.7, alpha=0.7)
axes.plot([-1.6, 1.9], [-1.6, 1.9], color="grey", linestyle="--", linewidth=1)
axes.set_xlabel("petal width, standardised")
axes.set_ylabel("prediction ± 2 deviations")
plt.show()
inside = np.mean(np.abs(mean - X[test, 3]) < 2 * deviation)
print(f"{inside:.0%} of the flowers lie within two deviations")
