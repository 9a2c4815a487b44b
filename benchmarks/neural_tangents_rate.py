"""Times neural-tangents for `compare.py`, in the Python that has it: reads requests and writes answers, as JSON lines.

    request   {"architecture": text form, "left": file.npy, "right": file.npy, "rows": n, "columns": m}
    answer    {"seconds": of one call, "values": (n, m), before the head, "left": (n,), "right": (m,): squared norms}

Environment: neural-tangents 0.6.5 (installed with --no-deps), jax 0.4.38, jaxlib 0.4.38 and frozendict. It runs in
float32, compiled by XLA before it is timed. The time includes the norms of the n + m images, since the library cannot
keep them.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import types

import numpy as np


@functools.cache
def libraries():
    """Import jax and stax; a stub module keeps neural-tangents from importing TensorFlow."""
    import jax

    sys.modules["neural_tangents.experimental"] = types.ModuleType("experimental")
    from neural_tangents import stax

    return jax, stax


def layers(text):
    """The stax layers of an architecture in text form, without its head."""
    _, stax = libraries()
    body = text.split(" normalize ")[0].split()
    gain = 1.0 if "gaussian" in body else 2**0.5
    known = {
        "conv3": lambda: stax.Conv(1, (3, 3), padding="SAME", W_std=gain, b_std=None),
        "relu": stax.Relu,
        "gaussian": lambda: stax.ExpNormalized(gamma=1, shift=-1),
        "pool2": lambda: stax.AvgPool((2, 2), strides=(2, 2)),
        "globalpool": stax.GlobalAvgPool,
    }
    return [known[word]() for word in body]


@functools.cache
def functions(text):
    """Two compiled functions: the kernel, and the kernel with the squared norms of both sides."""
    jax, stax = libraries()
    _, _, kernel = stax.serial(*layers(text))
    return (
        jax.jit(lambda x, z: kernel(x, z, "nngp")),
        jax.jit(lambda x, z: kernel(x, z, ("nngp", "cov1", "cov2"))),
    )


@functools.cache
def results(text, left, right, rows, columns):
    """Values and squared norms of a block; also compiles the function that is timed."""
    x, z = np.load(left)[:rows], np.load(right)[:columns]
    timed, full = functions(text)
    timed(x, z).block_until_ready()
    kernel = full(x, z)
    return {"values": kernel.nngp.tolist(), "left": kernel.cov1.tolist(), "right": kernel.cov2.tolist()}


def answer(architecture, left, right, rows, columns):
    """One timed call, and its results."""
    values = results(architecture, left, right, rows, columns)
    x, z = np.load(left)[:rows], np.load(right)[:columns]
    timed, _ = functions(architecture)
    start = time.perf_counter()
    timed(x, z).block_until_ready()
    return {"seconds": time.perf_counter() - start, **values}


def main():
    """Print the versions, then answer requests until the input ends."""
    jax, _ = libraries()
    from importlib.metadata import version

    print(json.dumps({"neural-tangents": version("neural-tangents"), "jax": jax.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
