"""Golden values of residual, strided, dilated, patched and summed networks, by neural-tangents, in float64 on a CPU.

Environment: that of make_goldens.py (Python 3.11, neural-tangents 0.6.5 installed with --no-deps, jax 0.4.38,
jaxlib 0.4.38, frozendict) with numpy 2.4.6, and for the images scikit-learn 1.9.1 and Pillow. To make the file:

    python tests/goldens/make_graph_goldens.py

neural_tangents_graphs.npz
    cases            JSON text, a list of {"name", "architecture", "inputs"}
    inputs/<inputs>  images (N, H, W, C) or sequences (N, L, C)
    kernel/<name>    (N, N), the NNGP kernel
    tangent/<name>   (N, N), the NTK with a trained linear readout on top; diagonal: see below

Images are real: whitened handwritten digits, crops of photographs and rows of their pixels. No two images have
parallel windows at the first layer: there c = 1, where rounding costs f'(c) half its digits. The digits come from the
UCI repository. The photographs are china.jpg by danielbuechele and flower.jpg by vultilion (both CC BY 2.0, cropped).

How a text form becomes a network of neural-tangents, with public layers only:
    conv3, patch2     Conv with W_std = 1 and no bias, which is the mean over the window; patch2 has stride 2, VALID
    stride            AvgPool((1, 1), strides) after a Conv of stride 1: SAME with strides pads differently
    dilation          Conv has none. A convolution is the sum over its window of independent 1x1 convolutions of shifted
                      images: FanInSum of DotGeneral (the shift, zeros from outside) and Conv 1x1 with W_std = 1 / 3
    relu, leakyrelu   ABRelu with the gain that keeps norms, sqrt(2) max(x, 0)
    gaussian          ExpNormalized
    normalize         a layer of weights (Conv 1x1) and LayerNorm; the nonlinearity after it needs no more weights
    sum               FanOut, parallel, FanInSum; weights w are DotGeneral(sqrt(w)). Where a branch ends in features,
                      not pre-activations, FanInConcat instead; it takes the mean, so DotGeneral(sqrt(branches)) follows
A nonlinearity whose input is not Gaussian (a feature, not a pre-activation) gets a Conv 1x1 before it.

Scale: the file holds what the library computes, where windows outside sums add and x.z is not divided by channels.
Where nothing is normalised, the values of neural-tangents are multiplied by C 9^n for n 3x3 windows outside sums.

Check: dense_graphs.py computes both matrices again from their definitions, in plain NumPy. The program stops unless
both agree to 1e-12 of the square roots of the diagonals. The diagonal of the tangent is the exception: there
neural-tangents takes the arc cosine of a rounded 1 and agrees to 5e-8 only, so the file holds NumPy's diagonal.
"""

import functools
import itertools
import json
import warnings

import numpy as np
from dense_graphs import kernel_and_tangent
from graph_text import Sum, parse
from make_goldens import FOLDER, evaluate, libraries

RESNET = (
    "conv3 residual(relu conv3 relu conv3) relu sum(conv3(stride=2) relu conv3 | conv1(stride=2)) "
    "relu globalpool normalize relu"
)
ARCHITECTURES = {
    "chain": "conv3 relu pool2 conv3 relu globalpool normalize relu",
    "chain-leaky": "conv5 leakyrelu(0.1) pool2 conv3 leakyrelu(0.1) globalpool",
    "chain-gaussian": "conv3 gaussian conv3 gaussian pool2 conv3 gaussian globalpool normalize gaussian",
    "strided": "conv3(stride=2) relu conv3 relu globalpool",
    "strided-wide": "conv5(stride=3) relu conv3(stride=2) relu globalpool normalize relu",
    "subsampled": "conv3 relu conv1(stride=2) relu conv3 relu globalpool",
    "dilated": "conv3(dilation=2) relu conv3 relu globalpool",
    "strided-dilated": "conv3 relu conv3(stride=2, dilation=2) relu globalpool normalize relu",
    "overlapping-pool": "conv3 relu pool3(stride=2) conv3 relu pool2(stride=1) conv3 relu globalpool",
    "patched": "patch2 relu conv3 relu globalpool",
    "patched-gaussian": "patch2 gaussian conv3 gaussian globalpool normalize gaussian",
    "patch-in-sum": "conv3 relu sum(patch2 | conv3(stride=2)) relu globalpool",
    "windows-summed": "conv3 relu sum(conv3 | conv5) relu globalpool normalize relu",
    "weighted": "conv3 relu sum(0.5 * conv3 | 2 * conv1 | 0.25 * conv3(dilation=2)) relu globalpool",
    "weighted-skip": "conv3 sum(0.3 * relu conv3 | 0.7 * identity) relu globalpool",
    "projected-skip": "conv3 sum(relu conv3 relu conv3 | 0.5 * conv1) relu globalpool",
    "residual": "conv3 residual(relu conv3 relu conv3) relu globalpool",
    "nested": "conv3 residual(relu conv3 residual(relu conv3 relu conv3) relu conv3) relu globalpool",
    "nested-last": "conv3 residual(relu conv3 residual(relu conv3)) relu globalpool normalize relu",
    "two-blocks": "conv3 residual(relu conv3 relu conv3) residual(relu conv3 relu conv3) relu globalpool",
    "downsampling": "conv3 relu sum(conv3(stride=2) relu conv3 | conv1(stride=2)) relu globalpool",
    "pooled-skip": "conv3 sum(relu conv3(stride=2) | pool2) relu globalpool",
    "pooled-branch": "conv3 relu sum(conv3 pool2 | patch2 | conv1(stride=2)) relu conv3 relu globalpool",
    "sum-then-conv": "conv3 residual(relu conv3) conv3(stride=2) relu globalpool",
    "sum-last": "conv3 residual(relu conv3) globalpool",
    "residual-leaky": "conv3 residual(leakyrelu(0.1) conv3) leakyrelu(0.1) globalpool normalize leakyrelu(0.1)",
    "residual-gaussian": "conv3 residual(gaussian conv3 gaussian conv3) gaussian globalpool normalize gaussian",
    "residual-dilated": "conv3 residual(relu conv3(dilation=2) relu conv3) relu globalpool",
    "concatenated": "conv3 relu sum(conv3 relu | conv5 gaussian | 0.5 * identity) conv3(stride=2) relu globalpool",
    "concatenated-skip": "conv3 relu residual(conv3 relu conv3) relu globalpool normalize relu",
    "concatenated-pools": "conv3 relu sum(pool2 | 2 * conv3(stride=2) relu | patch2) conv3 relu globalpool",
    "resnet": RESNET,
}
# The sequences take the shorter list: all that is new for them is a grid of one axis.
SEQUENCES = (
    "strided",
    "strided-dilated",
    "overlapping-pool",
    "patch-in-sum",
    "weighted",
    "nested",
    "pooled-skip",
    "resnet",
)


@functools.cache
def photographs():
    """Load the sample photographs of scikit-learn, values from 0 to 1."""
    from sklearn.datasets import load_sample_images

    return [image / 255.0 for image in load_sample_images().images]


def digits(count=6):
    """Return handwritten digits (8, 8, 1), centred, whitened with a regulariser, at norm 8."""
    from sklearn.datasets import load_digits

    flat = load_digits().data
    flat = flat - flat.mean(axis=0)
    values, vectors = np.linalg.eigh(flat.T @ flat / len(flat))
    white = flat[:count] @ (vectors / np.sqrt(values + 0.1 * values.mean())) @ vectors.T
    return (8 * white / np.linalg.norm(white, axis=1, keepdims=True)).reshape(count, 8, 8, 1)


def crops(height, width):
    """Return three crops of each photograph (height, width, 3), less their mean colours."""
    corners = [(150, 200), (230, 340), (300, 120)]
    parts = [image[y : y + height, x : x + width] for image in photographs() for y, x in corners]
    return np.stack([part - part.mean(axis=(0, 1)) for part in parts])


def make_inputs():
    """Return the images by name."""
    return {"digits-8x8x1": digits(), "photographs-12x10x3": crops(12, 10), "rows-16x3": crops(1, 16)[:, 0]}


def network(nodes, grid, gaussian=False):
    """Return the layers of a chain, the grid they leave, and whether their outputs are Gaussian."""
    stack = []
    for node in nodes:
        if isinstance(node, Sum):
            layer, grid, gaussian = branching(node, grid, gaussian)
        elif node.name in ("conv", "patch"):
            (layer, grid), gaussian = window(node, grid), True
        elif node.name in ("pool", "globalpool"):
            layer, grid = pool(node, grid)
        else:
            stack += [] if gaussian else [convolution(1, len(grid))]
            layer, gaussian = elementwise(node), node.name == "normalize"
        stack.append(layer)
    return stack, grid, gaussian


def branching(node, grid, gaussian):
    """Make a weighted sum of branches: their sum where all are Gaussian, otherwise their features side by side."""
    _, stax = libraries()
    ends = [network(branch, grid, gaussian) for branch in node.branches]
    gains = [stax.DotGeneral(rhs=float(np.sqrt(weight))) for weight in node.weights]
    parts = [stax.serial(*stack, gain) for (stack, _, _), gain in zip(ends, gains, strict=True)]
    apart = [stax.FanOut(len(parts)), stax.parallel(*parts)]
    if all(end[2] for end in ends):
        return stax.serial(*apart, stax.FanInSum()), ends[0][1], True
    # The mean weighs branches by their widths, which are all 1 as long as concatenations are not nested.
    mean_to_sum = stax.DotGeneral(rhs=float(np.sqrt(len(parts))))
    return stax.serial(*apart, stax.FanInConcat(axis=-1), mean_to_sum), ends[0][1], False


def window(node, grid):
    """Make a convolution or patches, and subsample."""
    _, stax = libraries()
    size, stride = (node.size,) * len(grid), node.stride or 1
    if node.name == "patch":
        layer = stax.Conv(1, size, strides=size, padding="VALID", W_std=1.0, b_std=None)
        return layer, tuple(length // node.size for length in grid)
    dilated = node.dilation > 1
    layer = dilated_convolution(node.size, node.dilation, grid) if dilated else convolution(node.size, len(grid))
    every = stax.AvgPool((1,) * len(grid), strides=(stride,) * len(grid))
    return stax.serial(layer, every), tuple(-(-length // stride) for length in grid)


def convolution(size, dimensions):
    """Make a convolution of stride 1 with zero padding: the mean over its window."""
    _, stax = libraries()
    return stax.Conv(1, (size,) * dimensions, padding="SAME", W_std=1.0, b_std=None)


def dilated_convolution(size, dilation, grid):
    """Add up 1x1 convolutions of shifted images, one for each place in the window."""
    _, stax = libraries()
    axes = tuple(range(1, len(grid) + 1))
    letters = "HW"[: len(grid)]
    orders = (f"NC{letters}", f"{letters}IO", f"N{letters}C")  # DotGeneral puts the channels first, Conv puts them last
    taps = []
    for steps in itertools.product(range(-(size // 2), size // 2 + 1), repeat=len(grid)):
        shifts = [np.eye(length, k=-step * dilation) for length, step in zip(grid, steps, strict=True)]
        shift = np.einsum("ab,cd->acbd", *shifts) if len(grid) == 2 else shifts[0]  # (input, output)
        moved = stax.DotGeneral(rhs=shift, dimension_numbers=((axes, tuple(range(len(grid)))), ((), ())))
        weights = stax.Conv(1, (1,) * len(grid), W_std=size ** (-len(grid) / 2), b_std=None, dimension_numbers=orders)
        taps.append(stax.serial(moved, weights))
    return stax.serial(stax.FanOut(len(taps)), stax.parallel(*taps), stax.FanInSum())


def pool(node, grid):
    """Make a pool; the global one keeps the grid's axes."""
    _, stax = libraries()
    if node.name == "globalpool":
        return stax.AvgPool(grid, strides=grid), (1,) * len(grid)
    size, stride = node.size, node.stride or node.size
    layer = stax.AvgPool((size,) * len(grid), strides=(stride,) * len(grid), padding="VALID")
    return layer, tuple((length - size) // stride + 1 for length in grid)


def elementwise(node):
    """Make a nonlinearity that keeps norms, or a normalisation."""
    _, stax = libraries()
    if node.name == "normalize":
        return stax.LayerNorm(eps=0.0)
    if node.name == "gaussian":
        return stax.ExpNormalized(gamma=node.parameter or 1.0, shift=-1)
    slope = node.parameter or 0.0
    gain = np.sqrt(2 / (1 + slope**2))
    return stax.ABRelu(gain * slope, gain)


def scale(nodes, channels, dimensions):
    """Return the library's values divided by those of neural-tangents."""
    names = [getattr(node, "name", "sum") for node in nodes]
    if "normalize" in names:
        return 1.0
    sizes = [node.size**dimensions for node in nodes if not isinstance(node, Sum) and node.name in ("conv", "patch")]
    return float(channels * np.prod(sizes))


def by_neural_tangents(text, images):
    """Return the kernel and the tangent kernel at the library's scale."""
    _, stax = libraries()
    nodes, dimensions = parse(text), images.ndim - 2
    stack, _, _ = network(nodes, images.shape[1:-1])
    found = evaluate([*stack, stax.GlobalAvgPool(), stax.Dense(1, W_std=1.0, b_std=None)], images, ("nngp", "ntk"))
    factor = scale(nodes, images.shape[-1], dimensions)
    return factor * found.nngp, factor * found.ntk


def error(values, expected):
    """Return the differences relative to the square roots of the diagonal."""
    norms = np.sqrt(np.diagonal(expected))
    return np.abs(values - expected) / np.outer(norms, norms)


def checked(name, text, images):
    """Compute both matrices twice, compare and return them with the largest errors found."""
    kernel, tangent = by_neural_tangents(text, images)
    again = kernel_and_tangent(text, images)
    if kernel.dtype != np.float64 or tangent.dtype != np.float64:
        raise ValueError(f"{name}: {kernel.dtype} and {tangent.dtype}, not float64")
    kernel_error, tangent_error = error(kernel, again[0]), error(tangent, again[1])
    own = np.eye(len(images), dtype=bool)
    errors = kernel_error.max(), tangent_error[~own].max(), tangent_error[own].max()
    print(f"{name:40} kernel {errors[0]:.1e}, tangent {errors[1]:.1e}, its diagonal {errors[2]:.1e}")
    if not (errors[0] < 1e-12 and errors[1] < 1e-12 and errors[2] < 5e-8):  # false for NaN, too
        raise ValueError(f"{name}: neural-tangents and NumPy disagree")
    return kernel, np.where(own, again[1], tangent)


def main():
    """Compute and check every case, and save the file."""
    warnings.filterwarnings("ignore", module="neural_tangents")  # that it trusts branches to be independent: they are
    inputs = make_inputs()
    arrays, cases = {f"inputs/{key}": images for key, images in inputs.items()}, []
    for key, images in inputs.items():
        for name in SEQUENCES if images.ndim == 3 else ARCHITECTURES:
            case = {"name": f"{name}/{key}", "architecture": ARCHITECTURES[name], "inputs": key}
            arrays[f"kernel/{case['name']}"], arrays[f"tangent/{case['name']}"] = checked(
                case["name"], case["architecture"], images
            )
            cases.append(case)
    np.savez_compressed(FOLDER / "neural_tangents_graphs.npz", cases=json.dumps(cases), **arrays)


if __name__ == "__main__":
    main()
