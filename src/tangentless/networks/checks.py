"""Checks of parameters, in one wording: NAME must be this, not that."""

from typing import Any

from ..errors import ParameterError
from ..layers import is_whole


def require(holds: bool, name: str, what: str, value: object) -> None:
    """Refuse a value that is not what it must be, by name."""
    if not holds:
        raise ParameterError(f"{name} must be {what}, not {value!r}")


def check_counts(least: int = 1, **counts: Any) -> None:
    """Refuse what is no whole number of at least `least`."""
    for name, count in counts.items():
        require(is_whole(count) and count >= least, name, f"a whole number of at least {least}", count)


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse what is not known."""
    require(value in known, name, f"one of {', '.join(known)}", value)


def check_seed(seed: Any) -> None:
    """Refuse what PyTorch's generators do not take."""
    require(is_whole(seed) and 0 <= seed < 2**63, "seed", "a whole number from 0 to 2**63 - 1", seed)
