"""Architectures: expressions of layers, their text form, and the named ones.

In the text form, spaces separate layers and bars separate branches. It round-trips:

>>> a = Architecture.parse("conv3 residual(relu conv3) relu sum(conv3(stride=2) | 0.5 * pool2) globalpool")
>>> a == Architecture.parse(str(a))
True
>>> Architecture.parse("myrtle5").grids((32, 32))[-1]
(1, 1)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from .diagram import draw_layers
from .errors import ArchitectureError, ParameterError, closest
from .layers import LAYERS, Grid, Layer, Residual, Sum, Windowed, branches_of, format_grid

if TYPE_CHECKING:
    from .networks.model import Network

_LAYER = re.compile(r"([a-z]+)(\d+)?(?:\((.*)\))?", re.DOTALL)
_DEEPEST = 100  # parentheses inside each other: Python's stack would end at several hundred
_WEIGHT = re.compile(r"\s*([^\s*|()]+)\s*\*(.*)", re.DOTALL)


_MYRTLES = {"myrtle5": (2, 1, 1), "myrtle7": (2, 2, 2), "myrtle10": (3, 3, 3)}


def _myrtle(convolutions: tuple[int, int, int], nonlinearity: str) -> str:
    """Three groups of convolutions, each followed by a pool (the last one global), then the head."""
    groups = [" ".join([f"conv3 {nonlinearity}"] * count) for count in convolutions]
    return f"{groups[0]} pool2 {groups[1]} pool2 {groups[2]} globalpool normalize {nonlinearity}"


def _resnet(blocks: int, nonlinearity: str) -> str:
    """A pre-activation residual network (He et al. 2016) with three resolutions and the head of the Myrtles."""
    block = f"residual({nonlinearity} conv3 {nonlinearity} conv3)"
    halve = f"{nonlinearity} sum(conv3(stride=2) {nonlinearity} conv3 | conv1(stride=2))"
    groups = [" ".join([first, *[block] * (blocks - 1)]) for first in (block, halve, halve)]
    return f"conv3 {' '.join(groups)} {nonlinearity} globalpool normalize {nonlinearity}"


_FAMILIES = {
    **{name: functools.partial(_myrtle, sizes) for name, sizes in _MYRTLES.items()},
    **{name: functools.partial(_resnet, blocks) for name, blocks in {"resnet8": 1, "resnet14": 2}.items()},
}
NAMED: dict[str, str] = {
    name + suffix: build(nonlinearity)
    for name, build in _FAMILIES.items()
    for suffix, nonlinearity in {"": "relu", "-gaussian": "gaussian"}.items()
}
RECIPE_NAMES = ("paper", "best")  # of recipes.py, which imports this module; users try them as architectures
_KERNELS_OF_VECTORS = {  # of classical/, by the names that they have there or in scikit-learn, which users try too
    "rbf": "Gaussian(gamma)",
    "linear": "Linear()",
    "poly": "Polynomial(degree, offset)",
    "nngp": "NNGP(depth)",
    "ntk": "NTK(depth)",
}


@dataclass(frozen=True)
class Architecture:
    """A list of layers.

    >>> print(Architecture.parse("myrtle5"))
    conv3 relu conv3 relu pool2 conv3 relu pool2 conv3 relu globalpool normalize relu
    """

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise ArchitectureError("an architecture needs at least one layer, such as 'conv3 relu globalpool'")
        for layer in self.layers:
            if not isinstance(layer, Layer):
                raise ArchitectureError(
                    f"an architecture is made of layers, not {layer!r}; as text, it is one: 'conv3 relu globalpool'"
                )

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read a name such as `myrtle10-gaussian`, or a text form; an `ArchitectureError` says where that fails."""
        words = NAMED.get(text.strip().lower(), text).lower()
        if not words.strip():
            raise ArchitectureError(
                "the architecture is empty; try 'myrtle5' or 'conv3 relu globalpool normalize relu'"
            )
        return cls(_parse_layers(words, ""))

    @classmethod
    def of(cls, architecture: str | Architecture | Iterable[Layer]) -> Architecture:
        """The architecture of a name, a text form or a list of layers; an `Architecture` is returned as it is."""
        if isinstance(architecture, Architecture):
            return architecture
        if isinstance(architecture, str):
            return cls.parse(architecture)
        try:
            return cls(tuple(architecture))
        except TypeError:
            raise ArchitectureError(
                f"an architecture is a name, a text form, a list of layers or an Architecture, not {architecture!r}"
            ) from None

    def grids(self, grid: Grid) -> list[Grid]:
        """The grid before each layer and after the last; raises unless the last one is a single position.

        >>> Architecture.parse("conv3 relu pool2").grids((4, 4))
        Traceback (most recent call last):
            ...
        tangentless.errors.ArchitectureError: after the last layer, pool2, a 2×2 grid is left, so there is no \
single number for a pair; add globalpool at the end
        """
        grids = layer_grids(self.layers, grid)
        if any(length != 1 for length in grids[-1]):
            raise ArchitectureError(
                f"after the last layer, {self.layers[-1]}, a {format_grid(grids[-1])} grid is left, so there is "
                "no single number for a pair; add globalpool at the end"
            )
        return grids

    def to_torch(
        self,
        width: int | Sequence[int],
        classes: int,
        batch_norm: bool = False,
        *,
        shape: tuple[int, ...] = (32, 32, 3),
        seed: int = 0,
    ) -> Network:
        """The PyTorch network of this architecture with random weights: see `tangentless.networks.Network`."""
        from .networks.model import Network

        return Network(self, width, classes, batch_norm, shape=shape, seed=seed)

    def __str__(self) -> str:
        return " ".join(map(str, self.layers))

    def __repr__(self) -> str:
        return f"Architecture.parse({self.short_name!r})"

    def _repr_svg_(self) -> str:
        """A picture of the layers, for notebooks."""
        return draw_layers(self.layers, str(self))

    @property
    def short_name(self) -> str:
        """The name of a named architecture, or else the text form."""
        text = str(self)
        return next((name for name, named in NAMED.items() if named == text), text)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def layer_grids(layers: Sequence[Layer], grid: Grid, where: str = "") -> list[Grid]:
    """The grid before each layer and after the last; an `ArchitectureError` names a layer that does not fit."""
    grids = [grid]
    for place, layer in enumerate(layers, start=1):
        here = f"{where}layer {place} of {len(layers)}: "
        try:
            grids.append(_grid_after(layer, grids[-1], here))
        except ArchitectureError as error:
            raise ArchitectureError(_message_at(here, error)) from None
    return grids


def _grid_after(layer: Layer, grid: Grid, where: str) -> Grid:
    if isinstance(layer, Windowed):
        if not grid:
            raise ArchitectureError(
                f"{layer} needs a sequence or an image, but its input is a single vector; "
                "reshape X to images (N, H, W, C) or sequences (N, L, C), or leave the layer out"
            )
        return layer.output_grid(grid)
    ends = [
        layer_grids(branch, grid, f"{where}branch {number}, ")[-1]
        for number, branch in enumerate(branches_of(layer), start=1)
    ]
    if len(set(ends)) > 1:
        texts = [" ".join(map(str, branch)) or "identity" for branch in branches_of(layer)]
        found = "; ".join(f"{text} ends on {format_grid(end)}" for text, end in zip(texts, ends, strict=True))
        raise ArchitectureError(
            f"branches of a sum must end on one grid, but {found}; give the others the same strides, for example "
            "conv1(stride=2) or pool2 in place of identity"
        )
    return ends[0] if ends else grid


def _message_at(where: str, error: Exception) -> str:
    """The text of an error, with the place in front unless a nested call has put one there."""
    return str(error) if str(error).startswith("layer ") else f"{where}{error}"


def _parse_layers(text: str, where: str) -> tuple[Layer, ...]:
    words = split_text(text, " \t\n", where)
    return tuple(
        _parse_layer(word, f"{where}layer {k} of {len(words)}, {word!r}", len(words) == 1 and not where)
        for k, word in enumerate(words, start=1)
    )


def split_text(text: str, separators: str, where: str = "") -> list[str]:
    """The parts of a text between separators outside parentheses; empty parts are kept only between bars.

    >>> split_text("myrtle5, conv3(3, stride=2) relu globalpool", ",")
    ['myrtle5', ' conv3(3, stride=2) relu globalpool']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth > _DEEPEST:
            raise ArchitectureError(f"{where}parentheses are nested more than {_DEEPEST} deep; nest fewer branches")
        if depth < 0:
            break
        if depth == 0 and letter in separators:
            parts.append("")
        else:
            parts[-1] += letter
    if depth != 0:
        trouble = "not closed" if depth > 0 else "closed but not opened"
        raise ArchitectureError(f"{where}{text.strip()!r}: a parenthesis is {trouble}")
    return parts if "|" in separators else [part for part in parts if part]


def _parse_layer(word: str, where: str, alone: bool) -> Layer:
    match = _LAYER.fullmatch(word)
    if match is None:
        raise ArchitectureError(
            f"{where}: cannot be read; a layer is a name with a size or parameters, such as conv3, conv3(stride=2) or "
            "gaussian(0.5)"
        )
    name, size, inside = match.groups()
    try:
        if name in (Sum.name, Residual.name):
            return _parse_branches(name, size, inside, where)
        return _layer_class(name, word, alone)(**_parameters(LAYERS[name], size, inside))
    except (ParameterError, ArchitectureError) as error:
        raise ArchitectureError(_message_at(f"{where}: ", error)) from None


def _layer_class(name: str, word: str, alone: bool) -> type[Layer]:
    if name in LAYERS:
        return LAYERS[name]
    if alone and word in RECIPE_NAMES:
        raise ArchitectureError(
            f"{word} is a recipe, not a list of layers; `tangentless fit` takes it, and in Python tangentless.recipe"
        )
    names = [*LAYERS, Sum.name, Residual.name]
    known = [*names, *NAMED] if alone else names
    hint = closest(word if alone else name, known, cutoff=0.4)
    if alone and name in _KERNELS_OF_VECTORS:
        hint = f"the kernel of vectors is tangentless.classical.{_KERNELS_OF_VECTORS[name]}; "
    own = "a layer of your own is known after tangentless.register; "
    raise ArchitectureError(f"unknown layer; {hint}{own}known are {', '.join(known)}")


def _parse_branches(name: str, size: str | None, inside: str | None, where: str) -> Layer:
    if size or inside is None:
        example = "sum(relu conv3 | conv1)" if name == Sum.name else "residual(relu conv3)"
        raise ArchitectureError(f"branches stand in parentheses, such as {example}")
    branches, weights = [], []
    texts = split_text(inside, "|", f"{where}: ")
    for number, text in enumerate(texts, start=1):
        here = f"{where}, branch {number}: "
        weight = _WEIGHT.fullmatch(text)
        try:
            weights.append(float(weight[1]) if weight else 1.0)
        except ValueError:
            raise ArchitectureError(f"{here}a weight is a number, such as 0.5 * conv3, not {weight[1]!r}") from None  # type: ignore[index]
        text = weight[2] if weight else text
        if not text.strip():
            raise ArchitectureError(f"{here}it is empty; write identity for a branch without layers")
        branches.append(() if text.strip() == "identity" else _parse_layers(text, here))
    if name == Sum.name:
        return Sum(tuple(branches), tuple(weights))
    if len(branches) > 1 or weights != [1.0]:
        raise ArchitectureError("a residual has one branch without a weight; for several write sum(A | B | identity)")
    return Residual(branches[0])


def _parameters(kind: type[Layer], size: str | None, inside: str | None) -> dict[str, Any]:
    """Values of the fields of a layer: the size, then the parameters in parentheses, by position or by name."""
    names, hints = [field.name for field in fields(kind)], get_type_hints(kind)
    given: dict[str, str] = {}
    for place, text in enumerate(([size] if size else []) + [t for t in (inside or "").split(",") if t.strip()]):
        name, equals, value = (part.strip() for part in text.rpartition("="))
        if not equals:
            if place >= len(names):
                takes = f"takes {' and '.join(names)} only" if names else "takes no parameter"
                raise ArchitectureError(f"{kind.name} {takes}, but {value} was given too")
            name = names[place]
        if name not in names or name in given:
            reason = "is given twice" if name in given else f"is unknown; {kind.name} has {', '.join(names) or 'none'}"
            raise ArchitectureError(f"parameter {name!r} {reason}")
        given[name] = value
    return {name: _read_number(name, value, hints[name]) for name, value in given.items()}


def _read_number(name: str, text: str, kind: Any) -> float:
    """The value of a parameter, which is a float or, for any other annotation, an integer."""
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise ArchitectureError(f"{name} must be a {'' if kind is float else 'whole '}number, not {text!r}") from None
