"""Golden gradients: those of sum(G * k(X, Z)), by JAX through neural-tangents, in float64 on a CPU.

Environment: that of make_graph_goldens.py, whose networks and images these are. To make the file:

    python tests/goldens/make_gradient_goldens.py

neural_tangents_gradients.npz
    cases              JSON text, a list of {"name", "architecture", "inputs"}
    inputs/<inputs>    (5, H, W, C): X is the first three, Z the other two
    cotangent          (3, 2), G
    left/<name>, right/<name>    the gradients by X and by Z, at the library's scale
"""

import json
import warnings

import numpy as np
from graph_text import parse
from make_goldens import FOLDER, libraries
from make_graph_goldens import ARCHITECTURES, crops, digits, network, scale

CHOSEN = {
    "digits-8x8x1": ("chain", "chain-gaussian", "strided-dilated", "weighted", "resnet"),
    "photographs-6x6x3": ("chain-leaky", "overlapping-pool", "nested-last", "pooled-skip"),
}


def gradients(text, X, Z, G):
    """Return the gradients by both sets of images at the library's scale."""
    jax, stax = libraries()
    nodes = parse(text)
    stack, _, _ = network(nodes, X.shape[1:-1])
    _, _, kernel = stax.serial(*stack, stax.GlobalAvgPool(), stax.Dense(1, W_std=1.0, b_std=None))
    factor = scale(nodes, X.shape[-1], X.ndim - 2)
    found = jax.jit(jax.grad(lambda x, z: (G * factor * kernel(x, z, "nngp")).sum(), argnums=(0, 1)))(X, Z)
    left, right = (np.asarray(one) for one in found)
    if left.dtype != np.float64 or not all(np.isfinite(one).all() for one in (left, right)):
        raise ValueError(f"{text}: {left.dtype}, or not finite")
    return left, right


def main():
    """Compute every case, and save the file."""
    warnings.filterwarnings("ignore", module="neural_tangents")
    inputs = {"digits-8x8x1": digits(5), "photographs-6x6x3": crops(6, 6)[:5]}
    G = np.random.default_rng(0).standard_normal((3, 2))
    arrays, cases = {"cotangent": G, **{f"inputs/{key}": images for key, images in inputs.items()}}, []
    for key, images in inputs.items():
        for name in CHOSEN[key]:
            case = {"name": f"{name}/{key}", "architecture": ARCHITECTURES[name], "inputs": key}
            found = gradients(case["architecture"], images[:3], images[3:], G)
            print(f"{case['name']:40} {[float(np.abs(one).max()) for one in found]}")
            arrays[f"left/{case['name']}"], arrays[f"right/{case['name']}"] = found
            cases.append(case)
    np.savez_compressed(FOLDER / "neural_tangents_gradients.npz", cases=json.dumps(cases), **arrays)


if __name__ == "__main__":
    main()
