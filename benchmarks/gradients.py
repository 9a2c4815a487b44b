"""Compares the cost of gradients with that of kernel entries, for Myrtle5, on the fused and the general path.

    python benchmarks/gradients.py benchmarks/results/gradients_cpu.json
    python benchmarks/gradients.py benchmarks/results/gradients_h200.json --backend cuda

Both directions take turns, and the least time counts. On the CPU, times are processor seconds of one thread, which
other work on the machine disturbs little; rates are those that two undisturbed cores would reach. On a GPU, images and
cotangents are on the device. PyTorch's autograd through compiled layers runs on the same pairs or some of them, with
norms as inputs and without the head, timed by the clock, on all cores. Errors are of a few pairs against the
reference, relative to the largest gradient.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import tangentless as tl
from tangentless.backends.general import general_block, prepare_general
from tangentless.files import write_json
from tangentless.timing import command, describe_machine, environment, today

TURNS, CORES, NAME = 4, 2, "myrtle5"
GENERAL = 64  # images of either side at most, for the general path on a GPU
BESIDE = {"cpu": (4, 16), "cuda": (32, 64)}  # images of either side at most, for PyTorch


def least(*functions, clock=time.process_time):
    """Call functions in turns; returns the least time of each."""
    found = [[] for _ in functions]
    for _ in range(TURNS):
        for times, function in zip(found, functions, strict=True):
            start = clock()
            function()
            times.append(clock() - start)
    return [min(times) for times in found]


# On a GPU: name, kernel, whether to use the general path, and whether to compute gradients by the images of both sides.
# `parameters=True` asks for gradients by parameters of layers, which only the general path computes.
CASES = (
    ("both sides", NAME, False, True),
    ("one side", NAME, False, False),
    ("one side of a flat network", "conv3 relu pool2 conv3 relu pool2 conv3 relu pool2 patch4", False, False),
    ("both sides, general path", NAME, True, True),
)


def numbers(side, rows, columns):
    rng = np.random.default_rng(0)
    shapes = (rows, side, side, 3), (columns, side, side, 3), (rows, columns)
    return [rng.standard_normal(shape) for shape in shapes]


def on_cpu(side, rows, columns, fused):
    kernel, (X, Z, G) = tl.kernel(NAME), numbers(side, rows, columns)
    graph, backend = kernel.graph(X.shape[1:]), tl.Device("cpu", "float32", 1).backend
    left, right = (backend.gradient(graph, one, parameters=not fused) for one in (X, Z))
    if fused:
        near, far = backend.prepare(graph, X), backend.prepare(graph, Z)
        forward = lambda: backend.block(graph, near, far)  # noqa: E731
    else:
        near, far = prepare_general(graph, X), prepare_general(graph, Z)
        forward = lambda: general_block(near, far, upper=False, advance=None)  # noqa: E731
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


def on_gpu(options):
    """Measure every case: both directions, and peak memory."""
    import cupy

    pool, rows = cupy.get_default_memory_pool(), []
    for what, text, parameters, both in CASES:
        most = GENERAL if parameters else max(options.rows, options.columns)
        X, Z, G = numbers(options.side, min(most, options.rows), min(most, options.columns))
        images, others, cotangent = map(cupy.asarray, (X, Z, G))
        graph, backend = tl.kernel(text).graph(X.shape[1:]), tl.Device("cuda", options.precision).backend
        left = backend.gradient(graph, images, parameters=parameters)
        right = backend.gradient(graph, others, parameters=parameters, wanted=both)
        if parameters:
            near, far = left.images, right.images
        else:
            near, far = backend.prepare(graph, images), backend.prepare(graph, others)
        wait = backend.machines[0].mark
        pool.free_all_blocks()
        pulls = lambda: (backend.pullback(graph, left, right, cotangent), wait()())  # noqa: B023, E731
        forward = lambda: (backend.block(graph, near, far), wait()())  # noqa: B023, E731
        pulls(), forward()
        ahead, back, alone = least(
            forward,
            pulls,
            lambda: (left.finish(), wait()()),  # noqa: B023
            clock=time.perf_counter,
        )
        rows.append(
            {
                "what": what,
                "kind": type(left).__name__,
                "forward": "general path" if parameters else backend.describe(graph),
                "pairs": G.size,
                "forward pairs/s": round(G.size / ahead),
                "gradient pairs/s": round(G.size / back),
                "ratio": round(back / ahead, 2),
                "microseconds an image alone": 1e6 * alone / len(X),
                "peak bytes": pool.total_bytes(),
            }
        )
        print(rows[-1], flush=True)
    return rows


def errors(options):
    """Errors of the gradients of a few pairs, in both precisions."""
    kernel, (X, Z, G) = tl.kernel(NAME), numbers(options.side, 2, 2)
    expected = kernel.vjp(X, Z, G, backend="reference")
    found = {}
    for precision in ("float32", "float64"):
        gradients = kernel.vjp(X, Z, G, backend=options.backend, precision=precision)
        pairs = zip(gradients, expected, strict=True)
        found[precision] = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    return found


def beside(options):
    """Time PyTorch on the same pairs: entries, and entries with gradients."""
    from tangentless.bench import rival

    kernel, (X, Z, G) = tl.kernel(NAME), numbers(options.side, options.rows, options.columns)
    rows, columns = BESIDE[options.backend]
    X, Z, G = X[:rows], Z[:columns], G[:rows, :columns]
    graph = kernel.graph(X.shape[1:])
    reason = rival.why_no_rival(graph) if options.backend == "cuda" else None
    if reason is not None:
        return {"missing": reason}
    contender = rival.Rival(graph, device=options.backend)
    left, right = contender.prepare(X), contender.prepare(Z)
    back = lambda: [one.cpu() for one in contender.gradient(left, right, G)]  # noqa: E731
    start = time.perf_counter()
    contender.block(left, right), back()
    compiling = time.perf_counter() - start
    ahead, behind = least(lambda: contender.block(left, right), back, clock=time.perf_counter)
    return {
        "what": "PyTorch, autograd through compiled layers, float32",
        "pairs": G.size,
        "forward pairs/s": round(G.size / ahead),
        "gradient pairs/s": round(G.size / behind),
        "seconds of compiling": round(compiling, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "float64"])
    parser.add_argument("--side", type=int, default=32, help="of the images, on a GPU")
    parser.add_argument("--rows", type=int, default=128, help="images on the left, on a GPU")
    parser.add_argument("--columns", type=int, default=128, help="images on the right, on a GPU")
    parser.add_argument("--no-rival", action="store_true")
    options = parser.parse_args()
    about = {"date": today(), "environment": environment(), "command": command(sys.argv)}
    about["machine"] = describe_machine(options.backend)
    record = {"benchmark": "gradients", **about}
    if options.backend == "cpu":
        record["results"] = [on_cpu(32, 4, 16, fused=True), on_cpu(8, 16, 16, fused=False)]
    else:
        record["results"] = on_gpu(options)
    write_json(options.output, record)  # kept if the rest fails: compiling PyTorch takes a while
    record["rival"] = None if options.no_rival else beside(options)
    write_json(options.output, record)
    record["errors"] = errors(options)
    write_json(options.output, record)
    print(record)


if __name__ == "__main__":
    main()
