"""Claim: what makes kernels more accurate at a given number of images can be found without test labels.

The data are a few thousand training images of CIFAR-10 and a few thousand other training images for validation; no test
image is used. Every row adds one ingredient to a base, Myrtle10-Gaussian with flips and ZCA of epsilon 1e-4, and is
scored by its leave-one-out accuracy. Ingredients that change how new images are predicted are scored on the validation
images. At the end, the ingredients that helped are added one after the other, the most helpful first; each is kept if
it raises the score.

The matrices of the kernels in a sum or product are kept in memory, and with `Settings.store` also in files. Sums,
products, ridges, tilts and the gamma of the last layer then need no new kernel entries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..console import percent, say
from ..datasets import Dataset
from ..errors import NotPositiveDefinite, ParameterError
from ..features import RandomPatchFeatures
from ..files import load_array, make_folder, save_array
from ..kernel import CompositionalKernel, Crossed, Kernel, Product, Scaled, Sum, kernel
from ..layers import Gaussian
from ..preprocessing import Augmentation
from ..progress import progress_bar
from ..recipes import KernelRecipe
from ..solve import factorise
from ..symmetries import Symmetry, Transform
from ..timing import describe_machine, symmetric_pairs
from .records import Clock, Outcome, Row, Run, View, backend_name, digest
from .splits import by_class, choose
from .whitening import Whitening

EXPERIMENT = "recipe"
COLUMNS = ("ingredient", "images", "leave-one-out", "gain", "± one error", "validation", "million pairs", "seconds")
BASE = KernelRecipe(kernel("myrtle10-gaussian"))

Array = NDArray[np.float64]
Images = NDArray[np.float32]
Change = Callable[[KernelRecipe], KernelRecipe]


def _unchanged(recipe: KernelRecipe) -> KernelRecipe:
    return recipe


@dataclass(frozen=True)
class Ingredient:
    """A change to a recipe.

    `share` is the share of the training images used, below 1 for expensive changes. `new` marks changes that only show
    on new images; they are scored on the validation images. `learn` makes a kernel from the training images, as they
    look to kernels, which is added.
    """

    name: str
    change: Change = _unchanged
    share: float = 1.0
    new: bool = False
    learn: Callable[[Images], Kernel] | None = None

    def __call__(self, recipe: KernelRecipe, images: Callable[[float], Images]) -> KernelRecipe:
        """The changed recipe; `images` gives the training images by the epsilon of their whitening."""
        changed = self.change(recipe)
        if self.learn is None:
            return changed
        return replace(changed, kernel=changed.kernel + self.learn(images(changed.epsilon)))


def _set(**changes: Any) -> Change:
    return lambda recipe: replace(recipe, **changes)


def _plus(name: str, weight: float = 1.0) -> Change:
    """Add another kernel, times a weight."""
    other = kernel(name) if weight == 1.0 else weight * kernel(name)
    return lambda recipe: replace(recipe, kernel=recipe.kernel + other)


def _random_patches(weight: float) -> Callable[[Images], Kernel]:
    """Learn features of random patches (Coates and Ng); their inner products, of this mean over the diagonal."""

    def learn(images: Images) -> Kernel:
        features = RandomPatchFeatures(max(1, len(images) // 5), contrast=0.05, epsilon=0.1, mirrors=True).fit(images)
        rows = features.transform(images[:500])
        return weight / float(np.square(rows).sum(axis=1).mean()) * features.kernel()

    return learn


def _shape(text: str) -> Change:
    """Replace the architecture of the first kernel in the sum."""

    def change(recipe: KernelRecipe) -> KernelRecipe:
        changed: Kernel = kernel(text)
        others, rest = [], recipe.kernel
        while isinstance(rest, Sum):
            others.append(rest.second)
            rest = rest.first
        return replace(recipe, kernel=functools.reduce(Kernel.__add__, reversed(others), changed))

    return change


def _head(gamma: float) -> Change:
    """Set the gamma of the last layer, in every part that ends in a Gaussian."""
    return lambda recipe: replace(recipe, kernel=with_head(recipe.kernel, gamma))


def with_head(k: Kernel, gamma: float) -> Kernel:
    """The kernel with another gamma in the last layer of every part that ends in a Gaussian.

    >>> with_head(kernel("conv3 globalpool normalize gaussian") + kernel("myrtle5"), 2.0)
    kernel('conv3 globalpool normalize gaussian(2)') + kernel('myrtle5')
    """
    if isinstance(k, Sum | Product):
        return type(k)(with_head(k.first, gamma), with_head(k.second, gamma))
    if isinstance(k, Scaled):
        return Scaled(k.factor, with_head(k.base, gamma))
    if isinstance(k, CompositionalKernel) and isinstance(k.architecture.layers[-1], Gaussian):
        return kernel((*k.architecture.layers[:-1], Gaussian(gamma)))
    return k


def _groups(
    *gammas: float,
    sizes: tuple[int, ...] = (3, 3, 3),
    first: str = "conv3",
    pool: str = "pool2",
    last: str = "globalpool",
) -> str:
    """The text of a Myrtle with Gaussian layers: a gamma for each group of convolutions, then one for the head.

    `sizes` are the numbers of convolutions in the groups, which a `pool` separates. `first` replaces the first
    convolution, `last` the global pool.
    """
    words = [f"gaussian({gamma:g})" for gamma in gammas]
    groups = [" ".join([f"conv3 {word}"] * size) for word, size in zip(words, sizes, strict=False)]
    groups[0] = groups[0].replace("conv3", first, 1)
    return f"{f' {pool} '.join(groups)} {last} normalize {words[-1]}"


_GROUP = "conv3 gaussian residual(conv3 gaussian conv3 gaussian)"
RESIDUAL = f"{_GROUP} pool2 {_GROUP} pool2 {_GROUP} globalpool normalize gaussian"
# The cheap ones first: a run that is stopped keeps the rows it has.
INGREDIENTS = (
    Ingredient("tilt by leave-one-out", _set(tilt="loo")),
    Ingredient("ridge 1e-3", _set(ridge=1e-3)),
    Ingredient("ridge 1e-2", _set(ridge=1e-2)),
    Ingredient("head gamma 0.5", _head(0.5)),
    Ingredient("head gamma 2", _head(2.0)),
    Ingredient("head gamma 4", _head(4.0)),
    # Entries of the base lie within 0.01 of 1, so that a weight of 0.1 would drown them (11 points less).
    Ingredient("+ 1e-4 random patches", learn=_random_patches(1e-4)),
    Ingredient("+ 3e-4 random patches", learn=_random_patches(3e-4)),
    Ingredient("+ 1e-3 random patches", learn=_random_patches(1e-3)),
    Ingredient("+ myrtle5", _plus("myrtle5")),
    Ingredient("+ 0.5 myrtle5", _plus("myrtle5", 0.5)),
    Ingredient("+ 2 myrtle5", _plus("myrtle5", 2.0)),
    Ingredient("as the paper, without flips", _set(epsilon=1e-5, flips=False)),
    Ingredient("as the paper", _set(epsilon=1e-5)),
    Ingredient("the centre counts more", _shape(_groups(1, 1, 1, 1, last="halfpool globalpool"))),
    Ingredient("wider first patches", _shape(_groups(1, 1, 1, 1, first="conv3 conv3"))),
    Ingredient("+ wider first patches", _plus(_groups(1, 1, 1, 1, first="conv3 conv3"))),
    # Architectures other than chains of 3×3 windows and 2×2 pools take three to five times as long on a GPU.
    Ingredient("residuals", _shape(RESIDUAL), share=0.5),
    Ingredient("first patches 5×5", _shape(_groups(1, 1, 1, 1, first="conv5")), share=0.5),
    Ingredient("wide pools", _shape(_groups(1, 1, 1, pool="pool4", sizes=(4, 4))), share=0.5),
    Ingredient("depth 7", _shape("myrtle7-gaussian")),
    Ingredient("depth 13", _shape(_groups(1, 1, 1, 1, sizes=(4, 4, 4)))),
    Ingredient("one pool", _shape(_groups(1, 1, 1, sizes=(4, 4)))),
    Ingredient("three pools", _shape(_groups(1, 1, 1, 1, 1, sizes=(2, 2, 2, 2)))),
    # Gammas above 1 amplify rounding errors; with larger ones, kernels would run in float64, ten times slower.
    Ingredient("gammas 1.15", _shape(_groups(1.15, 1.15, 1.15, 1))),
    Ingredient("gammas 0.5", _shape(_groups(0.5, 0.5, 0.5, 1))),
    Ingredient("gammas falling 1.5, 1, 0.5", _shape(_groups(1.5, 1, 0.5, 1))),
    Ingredient("gammas rising 0.5, 1, 1.5", _shape(_groups(0.5, 1, 1.5, 1))),
    Ingredient("+ myrtle10", _plus("myrtle10")),
    Ingredient("epsilon 3e-4", _set(epsilon=3e-4)),
    Ingredient("epsilon 3e-5", _set(epsilon=3e-5)),
    Ingredient("more convolutions late", _shape(_groups(1, 1, 1, 1, sizes=(2, 3, 4)))),
    Ingredient("more convolutions early", _shape(_groups(1, 1, 1, 1, sizes=(5, 3, 2)))),
    Ingredient("2 members, one of edges", _set(augmentation=Augmentation(view="edges"), ensemble=2), new=True),
    Ingredient("averaging over shifts", _set(averaging="shifts1"), share=0.6, new=True),
    Ingredient(
        "shifts across, symmetrised",
        lambda recipe: replace(recipe, kernel=recipe.kernel.symmetrized("shifts1(across)")),
        share=0.4,
    ),
    Ingredient("4 draws, crops by 2", _set(augmentation=Augmentation(crop=2), ensemble=4), share=0.6, new=True),
    Ingredient("2 members, one without colours", _set(augmentation=Augmentation(view="gray"), ensemble=2), new=True),
    Ingredient("4 draws, holes of 8", _set(augmentation=Augmentation(cutout=8), ensemble=4), share=0.6, new=True),
    Ingredient("averaging over shifts by 2", _set(averaging="shifts2"), share=0.4, new=True),
)


@dataclass(frozen=True)
class Settings:
    """Numbers of images, a time limit, and the names of the ingredients to try; all of them if none are named."""

    train: int = 5000
    validation: int = 2000
    minutes: float | None = None
    ingredients: tuple[str, ...] = ()
    combine: bool = True
    seed: int = 0
    store: Path | None = None  # folder for kernel matrices


def reproduce(
    dataset: Dataset,
    settings: Settings,
    *,
    backend: str = "auto",
    folder: Path,
    record: str | None = None,
    base: KernelRecipe = BASE,
    ingredients: tuple[Ingredient, ...] = INGREDIENTS,
) -> Outcome:
    """Score the ingredients, then combinations. A run that was stopped resumes where it was."""
    backend = backend_name(backend)
    work = _Work(dataset, settings, backend, folder / "pieces")
    known = {one.name: one for one in ingredients}
    if unknown := set(settings.ingredients) - known.keys():
        raise ParameterError(f"there is no ingredient {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [known[name] for name in settings.ingredients] or list(ingredients)
    run = Run(
        EXPERIMENT,
        folder,
        configuration={
            "train": settings.train,
            "validation": settings.validation,
            "base": base.to_json(),
            "ingredients": [one.name for one in chosen],
            "seed": settings.seed,
            "backend": backend,
        },
        data={dataset.name: dict(dataset.hashes)},
        machine=functools.partial(describe_machine, backend),
    )
    clock = Clock(None if settings.minutes is None else 60 * settings.minutes)
    view = View("ingredients on training images of CIFAR-10, accuracies in per cent", COLUMNS, cells)
    rows = _Rows(work, run, clock, base)
    found = rows.all(chosen, combine=settings.combine)
    return run.conduct(found, view, name=record or f"recipe-{settings.train}", keep=True)


def cells(row: Row) -> tuple[str, ...]:
    """A row of the table, under COLUMNS."""
    gain, error = f"{100 * row['gain']:+.2f}", f"{100 * row['gain error']:.2f}"
    pairs, seconds = f"{row['pairs'] / 1e6:.1f}", f"{row['seconds']:.0f}"
    shares = percent(row["leave-one-out accuracy"]), gain, error, percent(row["validation accuracy"])
    return row["ingredient"], f"{row['train']:,}", *shares, pairs, seconds


@dataclass(eq=False)
class _Rows:
    """Scores recipes, and compares each with the base at the same number of images."""

    work: _Work
    run: Run
    clock: Clock
    base: KernelRecipe

    def all(self, ingredients: list[Ingredient], *, combine: bool) -> Iterator[Row]:
        """The base, a row for every ingredient, and then the best combination, step by step."""
        yield self.row("base", self.base)
        found = []
        for one in ingredients:
            try:
                row = self.row(one.name, one(self.base, self.work.training), share=one.share, new=one.new)
            except NotPositiveDefinite as error:  # the ridge is too small for this kernel
                say(f"{one.name}: {error}")
                continue
            yield row
            found.append((row["gain"], one))
        if combine:
            yield from self._combine(sorted(found, key=lambda pair: -pair[0]))

    def _combine(self, found: list[tuple[float, Ingredient]]) -> Iterator[Row]:
        recipe, name, best = self.base, "base", 0.0
        for gain, one in found:
            if gain <= 0 or one.share < 1.0 or one.new:
                continue  # ingredients that are expensive or scored on new images are combined by hand
            more = one(recipe, self.work.training)
            row = self.row(f"{name}, {one.name}", more)
            yield row
            if row["gain"] > best:
                recipe, name, best = more, row["ingredient"], row["gain"]
        yield self.row(f"chosen: {name}", recipe, new=True)

    def row(self, name: str, recipe: KernelRecipe, share: float = 1.0, *, new: bool = False) -> Row:
        """Score a recipe, and compare it with the base at the same number of images."""
        size = round(share * self.work.settings.train)
        mine = self._score(recipe, size, new)
        base = mine if recipe == self.base and not new else self._score(self.base, size, new)
        what = "validation" if new else "leave-one-out"
        gains = _hits(mine[f"{what} hits"], mine[what]["rows"]) - _hits(base[f"{what} hits"], base[what]["rows"])
        return {
            "ingredient": name,
            "recipe": recipe.to_json(),
            "train": size,
            "leave-one-out accuracy": mine["leave-one-out"]["accuracy"],
            "validation accuracy": mine["validation"]["accuracy"] if mine["validation"] else None,
            "gain by": what,
            "gain": float(gains.mean()),
            "gain error": float(gains.std() / np.sqrt(len(gains))),  # the standard error of the paired difference
            "tilt": mine["tilt"],
            "pairs": mine["pairs"],
            "seconds": mine["seconds"],
        }

    def _score(self, recipe: KernelRecipe, size: int, new: bool) -> dict[str, Any]:
        settings = self.work.settings
        of = {"recipe": recipe.to_json(), "train": size, "validation": settings.validation if new else 0}
        of |= {"seed": settings.seed, "backend": self.work.backend}
        if new:
            of["validation from"] = settings.train  # the validation images follow all training images

        def compute() -> Any:
            self.clock.left()  # raises Unfinished when the time is over
            return self.work.score(recipe, size, new=new)

        piece = self.run.piece(of, compute)
        return {**piece.value, "seconds": piece.seconds}


@dataclass(eq=False)
class _Work:
    """Holds the images and the matrices of the summed kernels, each computed once, and scores recipes with them."""

    dataset: Dataset
    settings: Settings
    backend: str
    folder: Path
    matrices: dict[Any, Array] = field(default_factory=dict)
    whitened: dict[float, Images] = field(default_factory=dict)
    pairs: int = 0  # kernel entries computed so far

    def __post_init__(self) -> None:
        count = self.settings.train + self.settings.validation
        self.split = self.dataset.train.take(choose(len(self.dataset.train), count, self.settings.seed))
        self.targets = np.eye(len(self.dataset.classes))[self.split.labels]

    def score(self, recipe: KernelRecipe, size: int, *, new: bool) -> dict[str, Any]:
        """Leave-one-out accuracy on the first `size` images and, if `new`, accuracy on the validation images."""
        before, labels = self.pairs, self.split.labels[:size]
        if recipe.augmentation is None:
            loo, guesses, tilt = self._solve(recipe, size, new)
        else:
            loo, guesses, tilt = self._ensemble(recipe, size, new)
        hits = loo.argmax(axis=1) == labels
        found = {"leave-one-out": _share(hits), "leave-one-out hits": _pack(hits), "validation": None, "tilt": tilt}
        if guesses is not None:
            hits = guesses.argmax(axis=1) == self.split.labels[self.settings.train :]
            found |= {"validation": _share(hits), "validation hits": _pack(hits)}
        return {**found, "pairs": self.pairs - before}

    def _solve(self, recipe: KernelRecipe, size: int, new: bool) -> tuple[Array, Array | None, float]:
        K = self._matrix(recipe, None, size)
        where = "cuda" if self.backend == "cuda" else "cpu"
        factor = factorise(K, recipe.ridge, backend=where, overwrite=True)
        solution = factor.tilted(self.targets[:size], recipe.tilt, criterion="accuracy")
        if not new:
            return solution.leave_one_out, None, solution.tilt
        moves = (Transform(),) if recipe.averaging is None else Symmetry.parse(recipe.averaging).transforms
        across = sum(self._matrix(recipe, move, size) for move in moves) / len(moves)
        return solution.leave_one_out, np.asarray(across).T @ solution.coefficients, solution.tilt

    def _ensemble(self, recipe: KernelRecipe, size: int, new: bool) -> tuple[Array, Array | None, float]:
        """As `_solve`, but by the estimator: matrices of random copies cannot be shared between recipes."""
        images = self._images(recipe.epsilon)
        held_out = images[self.settings.train :]
        model = recipe.estimator(backend=self.backend, verbose=True).fit(images[:size], self.split.labels[:size])
        values = functools.partial(by_class, classes=model.classes_, count=self.targets.shape[1])
        guesses = values(model.decision_function(held_out)) if new else None
        views = (2 if recipe.flips else 1) * recipe.ensemble
        self.pairs += views * (symmetric_pairs(size) + (size * len(held_out) if new else 0))
        return values(model.loo_decision_), guesses, model.tilt_

    def _matrix(self, recipe: KernelRecipe, move: Transform | None, size: int) -> Array:
        """The kernel matrix of a recipe, with flips K + M, where M is the matrix against mirror images.

        Without `move` it is that of the first `size` images, (size, size). With `move` it is that of these images and
        the validation images, moved: (size, validation).
        """
        halves = (recipe.kernel, Crossed(recipe.kernel)) if recipe.flips else (recipe.kernel,)
        found = [self._assemble(half, recipe.epsilon, move, size) for half in halves]
        return found[0] if len(found) == 1 else found[0] + found[1]

    def _assemble(self, k: Kernel, epsilon: float, move: Transform | None, size: int) -> Array:
        """The matrix of a kernel, assembled from those of the kernels it is made of."""
        base = k.base if isinstance(k, Crossed) else k
        part = functools.partial(self._assemble, epsilon=epsilon, move=move, size=size)

        def alike(other: Kernel) -> Kernel:  # crossed, if k is
            return Crossed(other) if isinstance(k, Crossed) else other

        if isinstance(base, Sum | Product):
            return np.asarray(type(base).combine(part(alike(base.first)), part(alike(base.second))))
        if isinstance(base, Scaled):
            return base.factor * part(alike(base.base))
        head = base.architecture.layers[-1] if isinstance(base, CompositionalKernel) else None
        if isinstance(head, Gaussian) and head.gamma != 1.0:
            power: Array = part(alike(with_head(base, 1.0))) ** head.gamma  # exp(gamma (c - 1)), from exp(c - 1)
            return power
        return self._leaf(k, epsilon, move, size)

    def _leaf(self, k: Kernel, epsilon: float, move: Transform | None, rows: int) -> Array:
        """The matrix of a kernel that is no combination: cached, and cut to size if the cached one has more rows."""
        key = (repr(k), epsilon, move)
        whole = self.matrices.get(key)
        if whole is None or len(whole) < rows:
            whole = self.matrices[key] = self._load_or_compute(k, epsilon, move, rows)
        return (whole[:rows, :rows] if move is None else whole[:rows]).copy()

    def _load_or_compute(self, k: Kernel, epsilon: float, move: Transform | None, rows: int) -> Array:
        images, train = self._images(epsilon), self.settings.train
        about = [repr(k), epsilon, repr(move), rows, self.settings.validation, self.settings.seed, self.backend]
        if move is not None:
            about.append(train)
        path = None if self.settings.store is None else self.settings.store / f"recipe-{digest(about)}.npy"
        if path is not None and path.exists():
            return np.asarray(load_array(path))
        label = f"{k!r}, epsilon {epsilon:g}"
        with progress_bar(label) as progress:
            compute = functools.partial(k, backend=self.backend, progress=progress)
            values = compute(images[:rows]) if move is None else compute(images[:rows], move(images[train:]))
        self.pairs += (symmetric_pairs(rows) if move is None else values.size) * sum(1 for _ in k.leaves())
        if path is not None:
            make_folder(path.parent)
            save_array(path, values)
        return np.asarray(values)

    def training(self, epsilon: float) -> Images:
        """The training images, whitened."""
        return self._images(epsilon)[: self.settings.train]

    def _images(self, epsilon: float) -> Images:
        if epsilon not in self.whitened:
            zca = Whitening(epsilon).fit(self.dataset, self.folder, self.backend)
            self.whitened[epsilon] = zca.transform(self.split.images).astype(np.float32)
        return self.whitened[epsilon]


def _share(hits: NDArray[np.bool_]) -> dict[str, Any]:
    return {"accuracy": float(hits.mean()), "rows": len(hits)}


def _pack(hits: NDArray[np.bool_]) -> str:
    """Which predictions are right, as hexadecimal digits of four images each; `_hits` is the inverse.

    Two recipes are compared image by image, so that the error of their difference is small.
    """
    return np.packbits(hits).tobytes().hex()


def _hits(text: str, rows: int) -> Array:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:rows].astype(np.float64)
