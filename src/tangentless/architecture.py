"""Architectures: lists of layers, their text form, and the Myrtle family of the paper.

The text form is the layers separated by spaces, and round-trips:

>>> a = Architecture.parse("conv3 relu pool2 conv3 relu globalpool normalize relu")
>>> a == Architecture.parse(str(a))
True
>>> Architecture.parse("myrtle5").grids((32, 32))[-1]
(1, 1)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, get_type_hints

from .errors import ArchitectureError, ParameterError
from .layers import LAYERS, Grid, Layer, format_grid

if TYPE_CHECKING:
    from .networks.model import Network

_TOKEN = re.compile(r"([a-z]+)(\d+)?(?:\(([^()]*)\))?\Z")


def _myrtle(convolutions: tuple[int, int, int], nonlinearity: str) -> str:
    """Three groups of convolutions with a pool after each: the last one is global, then the head."""
    groups = [" ".join([f"conv3 {nonlinearity}"] * count) for count in convolutions]
    return f"{groups[0]} pool2 {groups[1]} pool2 {groups[2]} globalpool normalize {nonlinearity}"


NAMED: dict[str, str] = {
    name + suffix: _myrtle(convolutions, nonlinearity)
    for name, convolutions in {"myrtle5": (2, 1, 1), "myrtle7": (2, 2, 2), "myrtle10": (3, 3, 3)}.items()
    for suffix, nonlinearity in {"": "relu", "-gaussian": "gaussian"}.items()
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
                    f"an architecture is made of layers, not {layer!r}; for the text form use Architecture.parse"
                )

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Read a name such as `myrtle10-gaussian`, or a text form; raises `ArchitectureError` saying where it fails."""
        words = NAMED.get(text.strip().lower(), text).lower()
        tokens = re.sub(r"\s*,\s*", ",", words).split()
        if not tokens:
            raise ArchitectureError(
                "the architecture is empty; try 'myrtle5' or 'conv3 relu globalpool normalize relu'"
            )
        return cls(tuple(_parse_layer(token, place, tokens) for place, token in enumerate(tokens, start=1)))

    @classmethod
    def of(cls, architecture: str | Architecture | Iterable[Layer]) -> Architecture:
        """An architecture from any of the ways to write one."""
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
        """The grid before each layer and after the last, checked: the end must be a single position.

        >>> Architecture.parse("conv3 relu pool2").grids((4, 4))
        Traceback (most recent call last):
            ...
        tangentless.errors.ArchitectureError: after the last layer, pool2, a 2×2 grid is left, so there is no \
single number for a pair; add globalpool at the end
        """
        grids = [grid]
        for place, layer in enumerate(self.layers, start=1):
            try:
                grids.append(layer.output_grid(grids[-1]))
            except ArchitectureError as error:
                raise ArchitectureError(f"layer {place} of {len(self.layers)}: {error}") from None
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
        """The network of this shape in PyTorch, at random weights: see `tangentless.networks.Network`."""
        from .networks.model import Network

        return Network(self, width, classes, batch_norm, shape=shape, seed=seed)

    def __str__(self) -> str:
        return " ".join(map(str, self.layers))

    def __repr__(self) -> str:
        return f"Architecture.parse({self.short_name!r})"

    @property
    def short_name(self) -> str:
        """The name of a named architecture, else the text form."""
        text = str(self)
        return next((name for name, named in NAMED.items() if named == text), text)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def _parse_layer(token: str, place: int, tokens: list[str]) -> Layer:
    where = f"layer {place} of {len(tokens)}, {token!r}"
    match = _TOKEN.match(token)
    if match is None:
        raise ArchitectureError(
            f"{where}: cannot be read; a layer is a name with a size or a parameter, such as conv3 or gaussian(0.5)"
        )
    name, size, parameters = match.groups()
    if name not in LAYERS:
        known = [*LAYERS, *NAMED] if len(tokens) == 1 else list(LAYERS)
        near = difflib.get_close_matches(token if len(tokens) == 1 else name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ArchitectureError(f"{where}: unknown layer; {hint}known are {', '.join(known)}")
    kind = LAYERS[name]
    given = ([size] if size else []) + [p.strip() for p in (parameters or "").split(",") if p.strip()]
    expected = [field.name for field in fields(kind)]
    if len(given) > len(expected):
        takes = f"takes {' and '.join(expected)} only" if expected else "takes no parameter"
        raise ArchitectureError(f"{where}: {name} {takes}, but {' and '.join(given)} was given")
    hints = get_type_hints(kind)
    try:
        return kind(*(hints[field](value) for field, value in zip(expected, given, strict=False)))
    except ParameterError as error:
        raise ArchitectureError(f"{where}: {error}") from None
    except ValueError:
        raise ArchitectureError(f"{where}: {' and '.join(given)} is not a number of the right kind") from None
