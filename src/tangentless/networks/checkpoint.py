"""Checkpoints of training: archives (see `files`), which appear whole or not at all and are read without pickle.

A checkpoint states what run it belongs to. Training resumes only from one of the same recipe, seed, data, network and
precision. Random numbers depend on the seed and the number of the epoch only, so the state is the weights and the
moments of the optimizer.
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
    """The file is not a checkpoint, or belongs to another run."""


@dataclass(frozen=True)
class State:
    """The results of all finished epochs, and the arrays of network and optimizer."""

    history: list[dict[str, Any]]
    arrays: Arrays


def save_checkpoint(
    path: Path,
    belongs_to: Mapping[str, Any],
    history: list[dict[str, Any]],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Write the state after an epoch; the previous file stays until the new one is complete."""
    header = {"belongs_to": dict(belongs_to), "history": history}
    arrays = {f"network/{name}": _array(value) for name, value in network.state_dict().items()}
    for number, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                arrays[f"optimizer/{number}/{name}"] = _array(value)
    save_archive(path, FORMAT, VERSION, header, arrays)


def load_checkpoint(path: Path, belongs_to: Mapping[str, Any]) -> State | None:
    """Read the state at `path` and check that it belongs to this run; None if there is no file."""
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
    """Load the arrays of a state into network and optimizer."""
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
    with torch.no_grad():  # fused steps need moments in the memory layout of the weights (channels last)
        for parameter, moments in optimizer.state.items():
            for name, value in moments.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    moments[name] = torch.empty_like(parameter).copy_(value)


def _header_of_version_1(arrays: Arrays) -> Header:
    """The header of a checkpoint by version 0.1.0 of this package, which had no checksums."""
    header = json.loads(str(arrays.pop("header", None)))
    if not isinstance(header, dict) or header.get("format") != 1:
        raise InputError("its header is that of another kind of file")
    return header


def _differences(found: Any, wanted: Any, name: str = "") -> list[str]:
    """The differences between two nested mappings, in words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted(found.keys() | wanted.keys())
        return [line for key in keys for line in _differences(found.get(key), wanted.get(key), key)]
    return [] if found == wanted else [f"its {name} is {found!r} and not {wanted!r}"]


def _array(value: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().cpu().contiguous().numpy()
    return array
