"""A program that looks for data races between threads of fused gradients, with ThreadSanitizer.

    LD_PRELOAD=libtsan.so python races.py ARCHITECTURE HEIGHT,WIDTH,CHANNELS SIDES [RIGHT=>WRONG]

Every thread of a block is a thread of the host. Races are reported on standard error. RIGHT=>WRONG is a mistake to be
made in the source of the kernels.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import tangentless as tl
from conformance import images
from cuda_host import machine
from cuda_host.machine import HostMachine, emulate
from tangentless.backends.cuda import CudaBackend

# Teams add zeros to the row of zeros of left images, at the same time; nobody reads what is there.
UNREAD = (
    ("so_far.left = at(lefts", "if (left >= COLUMNS * sizeof(Lanes)) so_far.left = at(lefts"),
    (
        "at(lefts, which, LEFT, left) = total",
        "if (left >= COLUMNS * sizeof(Lanes)) at(lefts, which, LEFT, left) = total",
    ),
    (
        "at(lefts, channel, LEFT, left) = total",
        "if (left >= COLUMNS * sizeof(Lanes)) at(lefts, channel, LEFT, left) = total",
    ),
)


class SanitizedMachine(HostMachine):
    all_threads = True
    changes = UNREAD

    def load_text(self, text: str) -> Callable[..., None]:
        if "pull_0" in text:
            for right, wrong in self.changes:
                assert right in text, f"the source has no {right}"
                text = text.replace(right, wrong)
        return super().load_text(text)


def main(text: str, shape: str, sides: str, *mistakes: str) -> None:
    SanitizedMachine.changes = (*UNREAD, *(one.split("=>") for one in mistakes))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        compile_plainly: Callable[[list[str]], Any] = machine._compile
        patch.setattr(
            machine, "_compile", lambda options: compile_plainly([*options, "-fsanitize=thread", "-O1", "-g"])
        )
        patch.setattr(machine, "_folder", lambda: Path(folder))
        emulate(patch, SanitizedMachine)
        size = tuple(int(number) for number in shape.split(","))
        X, Z = images(size, 4), images(size, 1, seed=1)
        cotangent = np.random.default_rng(0).standard_normal((4, 1))
        tl.kernel(text).vjp(X, Z, cotangent, backend=CudaBackend(gpus=(0,)), wrt=sides)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
