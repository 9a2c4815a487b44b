"""Checkpoints of training: an archive (see `files`), written at once, and never unpickled.

What a checkpoint belongs to is part of it. Training goes on only from one of the same recipe, seed, data, network and
precision; everything random is drawn from the seed and the number of the epoch, so weights are all the state there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import ArchiveVersionError, InputError, TangentlessError
from ..files import Arrays, Header, load_archive, save_archive
from .pytorch import Tensor, nn, torch

FORMAT, VERSION = "tangentless checkpoint", 2


class CheckpointError(TangentlessError, OSError):
    """A checkpoint that is not one, or belongs to another run."""


@dataclass(frozen=True)
class State:
    """Epochs done with what they showed, and the arrays of network and optimizer."""

    history: list[dict[str, Any]]
    arrays: Arrays


def save_checkpoint(
    path: Path,
    belongs_to: Mapping[str, Any],
    history: list[dict[str, Any]],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write the state after an epoch; until the whole file is there, the last one stays."""
    header = {"belongs_to": dict(belongs_to), "history": history}
    arrays = {f"network/{name}": _array(value) for name, value in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                arrays[f"optimizer/{number}/{name}"] = _array(value)
    save_archive(path, FORMAT, VERSION, header, arrays)


def load_checkpoint(path: Path, belongs_to: Mapping[str, Any]) -> State | None:
    """The state at `path`, checked to be of this run; None where there is no file."""
    if not path.exists():
        return None
    try:
        header, arrays = load_archive(path, FORMAT, VERSION, old=_header_of_version_1)
        found, history = header["belongs_to"], header["history"]
    except ArchiveVersionError as error:
        raise CheckpointError(str(error)) from None
    except (InputError, KeyError) as error:
        raise CheckpointError(f"{path} is not a checkpoint: {error}; remove it to start from the beginning") from None
    if others := _differences(found, json.loads(json.dumps(dict(belongs_to)))):
        raise CheckpointError(
            f"{path} is of another run: {'; '.join(others)}. Name another file, or remove it to start over"
        )
    return State(history, arrays)


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


def _header_of_version_1(arrays: Arrays) -> Header:
    """What version 0.1.0 of this package wrote had no checksums."""
    header = json.loads(str(arrays.pop("header", None)))
    if not isinstance(header, dict) or header.get("format") != 1:
        raise InputError("its header is of something else")
    return header


def _differences(found: Any, wanted: Any, name: str = "") -> list[str]:
    """What is not the same in two nested mappings, in words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(found.keys() | wanted.keys())
        return [line for key in keys for line in _differences(found.get(key), wanted.get(key), key)]
    return [] if found == wanted else [f"its {name} is {found!r} and not {wanted!r}"]


def _array(value: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().cpu().contiguous().numpy()
    return array
