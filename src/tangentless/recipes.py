"""Named recipes: whitening, kernels, flips, ridge, tilt and views that work well together on small photographs.

`tangentless.recipe("best")` is a scikit-learn pipeline, ready to be fitted. `tangentless fit best` and
`tangentless reproduce cifar10 --kernels best` use the same definition, which is here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sklearn.pipeline import Pipeline, make_pipeline

from .errors import ParameterError
from .estimators import KernelRidgeClassifier, KernelRidgeRegressor
from .kernel import Kernel, kernel
from .preprocessing import ZCA, Augmentation


@dataclass(frozen=True)
class KernelRecipe:
    """All choices that do not depend on data; the fields are parameters of `ZCA` and `KernelRidgeClassifier`."""

    kernel: Kernel
    epsilon: float = 1e-4
    flips: bool = True
    ridge: float = 0.0
    tilt: float | str = 0.0
    averaging: str | None = None
    augmentation: Augmentation | None = None
    ensemble: int = 1

    def estimator(self, *, regression: bool = False, **options: Any) -> Any:
        """The classifier or regressor, for images that are whitened already."""
        names = ("ridge", "flips", "tilt", "averaging", "augmentation", "ensemble")
        kind = KernelRidgeRegressor if regression else KernelRidgeClassifier
        return kind(self.kernel, **{name: getattr(self, name) for name in names} | options)

    @property
    def views(self) -> list[str | None]:
        """The view of every member of the ensemble; None for the images themselves."""
        return [None] if self.augmentation is None else self.augmentation.views(self.ensemble)

    def kernels(self) -> list[Kernel]:
        """The kernel of every member, including flips."""
        return [self.estimator()._kernel_object(view) for view in self.views]

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON values."""
        names = ("epsilon", "flips", "ridge", "tilt", "averaging", "ensemble")
        about = None if self.augmentation is None else self.augmentation.to_json()
        return {
            "kernel": repr(self.kernel),
            **{name: getattr(self, name) for name in names},
            "augmentation": about,
        }


_DEEP = kernel("myrtle10-gaussian")
_CENTRED = kernel(str(_DEEP.architecture).replace("globalpool", "halfpool globalpool"))  # more weight in the centre
RECIPES: dict[str, KernelRecipe] = {
    "paper": KernelRecipe(_DEEP, epsilon=1e-5),  # its best CIFAR-10 result without tilting, which used test images
    # The second member sees edges at a quarter of the positions: 1/16 of the work, for 2 percentage points of accuracy.
    "best": KernelRecipe(_CENTRED, ridge=1e-4, tilt="loo", augmentation=Augmentation(view="edges"), ensemble=2),
}


def recipe_of(name: str) -> KernelRecipe:
    """The recipe with this name.

    >>> recipe_of("best").epsilon
    0.0001
    """
    if name not in RECIPES:
        raise ParameterError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def recipe(name: str = "best", *, patch: int | None = None, regression: bool = False, **options: Any) -> Pipeline:
    """The pipeline of a recipe: whitening, then the estimator. `options` are the estimator's and override the recipe.

    With `patch`, patches of so many pixels a side are whitened and not whole images: for few images, or large ones.

    >>> [type(step).__name__ for _, step in recipe("best").steps]
    ['ZCA', 'KernelRidgeClassifier']
    """
    chosen = recipe_of(name)
    whitening = ZCA(chosen.epsilon, mirrors=chosen.flips, patch=patch)
    return make_pipeline(whitening, chosen.estimator(regression=regression, **options))
