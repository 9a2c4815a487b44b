"""Gradients against the forward direction on the CPU: the fused path at 32×32×3, and the general one at 8×8×3.

    python benchmarks/gradients.py benchmarks/results/gradients_cpu.json

Both directions take turns, and the least time counts. Seconds are those of the processor, so that other work on the
machine disturbs little; rates are what two undisturbed cores give at that.
"""

import sys
import time
from pathlib import Path

import numpy as np

import tangentless as tl
from tangentless.backends.general import general_block, prepare_general
from tangentless.files import write_json
from tangentless.timing import command, describe_machine, environment, today

TURNS, CORES = 4, 2


def least(*functions):
    """The least processor time of each function, taking turns."""
    found = [[] for _ in functions]
    for _ in range(TURNS):
        for times, function in zip(found, functions, strict=True):
            start = time.process_time()
            function()
            times.append(time.process_time() - start)
    return [min(times) for times in found]


def measure(side, rows, columns, fused):
    kernel = tl.kernel("myrtle5")
    rng = np.random.default_rng(0)
    X, Z, G = (
        rng.standard_normal(shape) for shape in ((rows, side, side, 3), (columns, side, side, 3), (rows, columns))
    )
    graph, backend = kernel.graph(X.shape[1:]), tl.Device("cpu", "float32", 1).backend
    left, right = (backend.gradient(graph, one, parameters=not fused) for one in (X, Z))  # the general path has these
    if fused:
        near, far = backend.prepare(graph, X), backend.prepare(graph, Z)
        forward = lambda: backend.block(graph, near, far)  # noqa: E731
    else:
        near, far = prepare_general(graph, X), prepare_general(graph, Z)
        forward = lambda: general_block(near, far, upper=False, advance=None)  # noqa: E731
        left, right = (type(one)(one.graph, one.images, one.begin, 1, None, True, _plain(one)) for one in (left, right))
    backend.pullback(graph, left[:1], right[:1], G[:1, :1])
    ahead, back, alone = least(forward, lambda: backend.pullback(graph, left, right, G), left.finish)
    return {
        "shape": [side, side, 3],
        "path": "fused float32" if fused else "general float64",
        "forward pairs/s": round(CORES * G.size / ahead),
        "gradient pairs/s": round(CORES * G.size / back),
        "ratio": round(back / ahead, 2),
        "seconds an image alone": alone / rows,
    }


def _plain(gradient):
    """Without parameters."""
    return {key: total for key, total in gradient.totals.items() if key[0] != "parameter"}


def main():
    results = [measure(32, 4, 16, fused=True), measure(8, 16, 16, fused=False)]
    for row in results:
        print(row)
    about = {"date": today(), "machine": describe_machine(), "environment": environment(), "command": command(sys.argv)}
    write_json(Path(sys.argv[1]), {"benchmark": "gradients", "results": results, **about})


if __name__ == "__main__":
    main()
