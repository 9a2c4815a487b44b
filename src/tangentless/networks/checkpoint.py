"""Checkpoints of training: an archive of arrays with a JSON header, written at once, and never unpickled.

What a checkpoint belongs to is part of it. Training goes on only from one of the same recipe, seed, data, network and
precision; everything random is drawn from the seed and the number of the epoch, so weights are all the state there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, TangentlessError
from ..files import load_archive, save_archive
from .pytorch import Tensor, nn, torch

FORMAT = 1
_HEADER = "header"


class CheckpointError(TangentlessError, OSError):
    """A checkpoint that is not one, or belongs to another run."""


@dataclass(frozen=True)
class State:
    """Epochs done with what they showed, and the arrays of network and optimizer."""

    history: list[dict[str, Any]]
    arrays: dict[str, NDArray[Any]]


def save_checkpoint(
    path: Path,
    belongs_to: Mapping[str, Any],
    history: list[dict[str, Any]],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write the state after an epoch; until the whole file is there, the last one stays."""
    header = {"format": FORMAT, "belongs_to": dict(belongs_to), "history": history}
    arrays = {f"network/{name}": _array(value) for name, value in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                arrays[f"optimizer/{number}/{name}"] = _array(value)
    save_archive(path, {_HEADER: np.array(json.dumps(header)), **arrays})


def load_checkpoint(path: Path, belongs_to: Mapping[str, Any]) -> State | None:
    """The state at `path`, checked to be of this run; None where there is no file."""
    if not path.exists():
        return None
    try:
        arrays = load_archive(path)
        header = json.loads(str(arrays.pop(_HEADER)))
        found, version = header["belongs_to"], header["format"]
    except (InputError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint: {error}; remove it to start from the beginning") from None
    if version != FORMAT:
        raise CheckpointError(f"{path} is a checkpoint in format {version}, and this version reads {FORMAT}")
    if others := _differences(found, json.loads(json.dumps(dict(belongs_to)))):
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(others)}. Name another file, or remove it to start over"
        )
    return State(header["history"], arrays)


def restore(state: State, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put the arrays of a state back where they were."""
    network.load_state_dict(
        {name: torch.from_numpy(state.arrays[f"network/{name}"]) for name in network.state_dict()}, strict=True
    )
    values: dict[int, dict[str, Tensor]] = {}
    for name, array in state.arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            number, _, part = rest.partition("/")
            values.setdefault(int(number), {})[part] = torch.from_numpy(array)
    optimizer.load_state_dict({"state": values, "param_groups": optimizer.state_dict()["param_groups"]})
    with torch.no_grad():  # fused steps want moments laid out in memory as the weights are, with channels last
        for parameter, moments in optimizer.state.items():
            for name, value in moments.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)


def _differences(found: Any, wanted: Any, name: str = "") -> list[str]:
    """What is not the same in two nested mappings, in words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(found.keys() | wanted.keys())
        return [line for key in keys for line in _differences(found.get(key), wanted.get(key), key)]
    return [] if found == wanted else [f"its {name} is {found!r} and not {wanted!r}"]


def _array(value: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().cpu().contiguous().numpy()
    return array
