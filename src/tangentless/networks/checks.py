"""Checks of parameters, with uniform messages: NAME must be ..., not ..."""

from typing import Any

from ..errors import ParameterError
from ..layers import is_whole


def require(holds: bool, name: str, what: str, value: object) -> None:
    """Raise `ParameterError` unless `holds`; `what` describes the valid values."""
    if not holds:
        raise ParameterError(f"{name} must be {what}, not {value!r}")


def check_counts(least: int = 1, **counts: Any) -> None:
    """Refuse counts that are not whole numbers of at least `least`."""
    for name, count in counts.items():
        require(is_whole(count) and count >= least, name, f"a whole number of at least {least}", count)


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a value that is not among the known ones."""
    require(value in known, name, f"one of {', '.join(known)}", value)


def check_seed(seed: Any) -> None:
    """Refuse seeds that PyTorch's generators do not take."""
    require(is_whole(seed) and 0 <= seed < 2**63, "seed", "a whole number from 0 to 2**63 - 1", seed)
