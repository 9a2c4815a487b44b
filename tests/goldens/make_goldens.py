"""Golden values of infinitely wide networks, computed in float64 by an independent library, neural-tangents.

Environment: Python 3.11, neural-tangents 0.6.5 (installed with --no-deps), jax 0.4.38, jaxlib 0.4.38 and
frozendict, on a CPU. Last bits may differ between machines: compare with a tolerance. To make both files:

    python tests/goldens/make_goldens.py

Residual, strided, dilated, patched and summed networks have a program of their own, make_graph_goldens.py.

An architecture is written as in the library: `conv3 relu pool2 ... globalpool normalize relu`. All before
`normalize` is the body; the one nonlinearity after it is the head. Convolutions have stride 1, zero padding
and no bias.

neural_tangents.npz: compositional kernels (NNGP), free of scale
    cases            JSON text, a list of {"name", "architecture", "inputs"}
    inputs/<inputs>  images (N, H, W, C) or sequences (N, L, C)
    body/<name>      (N, N), the body's kernel divided by the square roots of its diagonal
    kernel/<name>    (N, N), the head's dual function applied to that
The inputs `corner-8x8x3` are images whose upper left 4x4 pixels are zero.

neural_tangents_ntk.npz: NNGP and NTK with their scale, nothing normalised
    cases               as above; the architecture is a body only, `dense relu` for the fully connected ones
    inputs/<inputs>     as above, or points (N, D)
    nngp/<name>         (N, N), the NNGP kernel of the body
    ntk/<name>          (N, N), the NTK of the body, which ends in a nonlinearity or pool, not a dense layer
    ntk_readout/<name>  (N, N), the NTK with Dense(1, W_std=1) put last; it is ntk + nngp
    ntk_fixed/<name>    (layers, N, N), for the fully connected ones: ntk_readout with the first 0, 1, ... dense layers
                        fixed, by setting their NTK to zero

Conventions of the second file: parameterization 'ntk', no biases, W_std = sqrt(2) before each ReLU. The first
kernel is x.z / C for C channels (x.z / D for points). A convolution is the *mean* over its window, with the
zeros of the padding counted in; times W_std squared, it makes the ReLU keep the diagonal. Where a convolution
is a plain sum, x.z is not divided and f(1) = 1, nngp and ntk are both larger by C 9^n for n conv3 (by D for
dense layers). The same holds for leaky ReLUs, and for Gaussians (ExpNormalized, W_std = 1 before it).

Precision: an independent NumPy evaluation agrees with body and kernel to 5e-15, and with nngp and ntk to
5e-15 relative, except on the diagonal of ntk and ntk_readout: there the derivative (pi - acos c) / pi turns a
rounding error of c = 1 into its square root, and entries are only good to 2e-8 relative.
"""

import functools
import json
import re
import sys
import types
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
# ExpNormalized keeps products of norms above 1e-15, which puts 5e-12 of error on images with a zero patch.
# The normalised kernel does not depend on the images' scale, so large images make that floor negligible.
SCALE = 2.0**20


@functools.cache
def libraries():
    """Import jax and stax, in float64; here rather than above, so that test collection does not need them."""
    import jax

    jax.config.update("jax_enable_x64", True)
    sys.modules["neural_tangents.experimental"] = types.ModuleType("experimental")  # would import TensorFlow
    from neural_tangents import stax

    return jax, stax


def parse(text):
    """Split an architecture's text into (word, number) pairs; the number is None where there is none."""
    words = [re.fullmatch(r"([a-z]+)\(?([0-9.]*)\)?", token).groups() for token in text.split()]
    return [(name, float(number) if number else None) for name, number in words]


def weight_std(name, number):
    """Return the weights' standard deviation that makes the nonlinearity keep the diagonal."""
    if name == "gaussian":
        return 1.0
    slope = number or 0.0
    return np.sqrt(2 / (1 + slope**2))


def dual(name, number, cosine):
    """Apply the dual function of a nonlinearity, f(1) = 1, from its definition."""
    if name == "gaussian":
        return np.exp((number or 1.0) * (cosine - 1))
    slope = number or 0.0
    relu = (np.sqrt(1 - cosine**2) + cosine * (np.pi - np.arccos(cosine))) / np.pi
    return (2 * slope * cosine + (1 - slope) ** 2 * relu) / (1 + slope**2)


def layer(name, number, gain, dimensions):
    """Make the neural-tangents layer of one token; `dimensions` counts the spatial ones."""
    _, stax = libraries()
    size = (int(number),) * dimensions if name in ("conv", "pool") else None
    if name == "conv":
        return stax.Conv(1, size, padding="SAME", W_std=gain, b_std=None)
    if name == "dense":
        return stax.Dense(1, W_std=gain, b_std=None)
    if name == "pool":
        return stax.AvgPool(size, strides=size)
    if name == "globalpool":
        return stax.GlobalAvgPool()
    if name == "gaussian":
        return stax.ExpNormalized(gamma=number or 1.0, shift=-1)
    return stax.LeakyRelu(number) if name == "leakyrelu" else stax.Relu()


def layers(tokens, dimensions):
    """Make the layers of a body; a convolution or dense layer takes the gain of the nonlinearity after it."""
    pairs = zip(tokens, [*tokens[1:], ("relu", None)], strict=True)
    return [layer(*token, weight_std(*follower), dimensions) for token, follower in pairs]


def evaluate(stack, inputs, kinds):
    """Run a list of layers on inputs; `kinds` is 'nngp' or ('nngp', 'ntk')."""
    jax, stax = libraries()
    _, _, kernel_function = stax.serial(*stack)
    return jax.tree.map(np.asarray, jax.jit(kernel_function, static_argnums=2)(inputs, None, kinds))


def correlation(kernel):
    """Divide by the square roots of the diagonal."""
    norm = np.sqrt(np.diag(kernel))
    return np.clip(kernel / np.outer(norm, norm), -1, 1)


def compositional(text, inputs):
    """Compute the normalised body and the head on top of it."""
    body_text, head_text = text.split(" normalize ")
    body = correlation(evaluate(layers(parse(body_text), inputs.ndim - 2), SCALE * inputs, "nngp"))
    (head,) = parse(head_text)
    return {"body": body, "kernel": dual(*head, body)}


def tangents(text, inputs):
    """Compute NNGP and NTK of a body, and the NTK with a last dense layer."""
    stack = layers(parse(text), inputs.ndim - 2)
    readout = layer("dense", None, 1.0, 0)
    plain = evaluate(stack, inputs, ("nngp", "ntk"))
    read = evaluate([*stack, readout], inputs, ("nngp", "ntk"))
    values = {"nngp": plain.nngp, "ntk": plain.ntk, "ntk_readout": read.ntk}
    if text.startswith("dense"):
        values["ntk_fixed"] = np.stack([read.ntk, *fixed_tangents([*stack, readout], inputs)])
    return values


def fixed_tangents(stack, inputs):
    """Compute the NTK of a stack of dense layers and ReLUs with the first, the first two, ... dense layers fixed."""
    jax, stax = libraries()
    for count in range(2, len(stack), 2):
        _, _, below = stax.serial(*stack[:count])
        _, _, above = stax.serial(*stack[count:])
        kernel = below(inputs, None)
        kernel = above(kernel.replace(ntk=jax.numpy.zeros_like(kernel.ntk)))
        yield np.asarray(kernel.ntk)


def stages(*counts):
    """Write a body of stages: so many conv3 relu each, pool2 in between, globalpool last."""
    return " pool2 ".join(" ".join(["conv3 relu"] * count) for count in counts) + " globalpool"


MYRTLE = {"myrtle5": stages(2, 1, 1), "myrtle7": stages(2, 2, 2), "myrtle10": stages(3, 3, 3)}


def make_inputs():
    """Draw seeded inputs, each a random mixture of three shared patterns plus its own noise."""
    generator = np.random.default_rng(20200305)

    def draw(count, *shape):
        patterns = generator.standard_normal((3, *shape))
        weights = 0.6 * generator.standard_normal((count, 3))
        return np.tensordot(weights, patterns, 1) + generator.standard_normal((count, *shape))

    shapes = {
        "8x8x3": (4, 8, 8, 3),
        "12x8x3": (3, 12, 8, 3),
        "corner-8x8x3": (3, 8, 8, 3),
        "32x32x3": (2, 32, 32, 3),
        "8x8x1": (4, 8, 8, 1),
        "16x5": (4, 16, 5),
        "7": (6, 7),
        "ntk-8x8x3": (3, 8, 8, 3),
        "ntk-12x8x1": (3, 12, 8, 1),
        "ntk-16x2": (3, 16, 2),
    }
    inputs = {name: draw(*shape) for name, shape in shapes.items()}
    inputs["corner-8x8x3"][:, :4, :4] = 0
    return inputs


def compositional_cases():
    """List (name, architecture, inputs) of every compositional kernel."""
    named = {}
    for name, body in MYRTLE.items():
        named[name] = f"{body} normalize relu"
        named[f"{name}-gaussian"] = named[name].replace("relu", "gaussian")
    small = ("8x8x3", "12x8x3", "corner-8x8x3")
    cases = [(f"{name}/{key}", text, key) for key in small for name, text in named.items()]
    cases += [(f"{name}/32x32x3", named[name], "32x32x3") for name in ("myrtle5", "myrtle10-gaussian")]
    wide = "conv5 relu pool2 conv3 leakyrelu(0.2) globalpool normalize relu"
    line = "conv3 relu pool2 conv3 relu globalpool normalize relu"
    cases += [("conv5-leakyrelu/8x8x1", wide, "8x8x1"), ("sequence/16x5", line, "16x5")]
    sharp = named["myrtle5"].replace("relu", "gaussian(2)")
    return [*cases, ("myrtle5-gaussian(2)/8x8x3", sharp, "8x8x3")]


def tangent_cases():
    """List (name, architecture, inputs) of every NNGP and NTK."""
    dense = [(f"dense-{depth}", " ".join(["dense relu"] * depth), "7") for depth in range(1, 6)]
    leaky = "conv5 leakyrelu(0.2) pool2 conv3 leakyrelu(0.3) conv3 relu pool2 conv3 leakyrelu(0.1) globalpool"
    line = "conv3 relu pool4 conv3 leakyrelu(0.2) globalpool"
    return [
        *dense,
        ("conv-2-1", stages(2, 1), "ntk-8x8x3"),
        *((name, body, "ntk-8x8x3") for name, body in MYRTLE.items()),
        ("myrtle5-gaussian", MYRTLE["myrtle5"].replace("relu", "gaussian"), "ntk-8x8x3"),
        ("leakyrelu/12x8x1", leaky, "ntk-12x8x1"),
        ("sequence/16x2", line, "ntk-16x2"),
    ]


def write(path, cases, function, inputs):
    """Evaluate every case and save one file."""
    arrays = {f"inputs/{key}": inputs[key] for key in dict.fromkeys(case[2] for case in cases)}
    for name, text, key in cases:
        for kind, value in function(text, inputs[key]).items():
            if value.dtype != np.float64 or not np.isfinite(value).all():
                raise ValueError(f"{name}: {kind} is {value.dtype} or not finite")
            arrays[f"{kind}/{name}"] = value
    listing = [dict(zip(("name", "architecture", "inputs"), case, strict=True)) for case in cases]
    np.savez_compressed(path, cases=json.dumps(listing), **arrays)


if __name__ == "__main__":
    everything = make_inputs()
    write(FOLDER / "neural_tangents.npz", compositional_cases(), compositional, everything)
    write(FOLDER / "neural_tangents_ntk.npz", tangent_cases(), tangents, everything)
