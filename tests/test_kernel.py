"""The public contract of kernels: matrices, algebra, arrays in and out, and bad input."""

import subprocess
import sys

import numpy as np
import pytest

import tangentless as tl
from conftest import frozen
from tangentless.errors import ArchitectureError, InputError, ParameterError, TangentlessError
from tangentless.inputs import check_images

SMALL = "conv3 relu pool2 conv3 relu globalpool normalize relu"


@pytest.fixture
def X(rng):  # noqa: N802
    return frozen(rng.standard_normal((21, 8, 8, 2)))


def test_a_symmetric_matrix_is_exactly_symmetric_and_has_the_diagonal(X):
    kernel = tl.kernel(SMALL)
    K = kernel(X)
    assert K.shape == (21, 21)
    assert K.dtype == np.float64
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(np.diagonal(K), kernel.diag(X))
    np.testing.assert_array_equal(kernel.diag(X), np.ones(21))
    assert np.linalg.eigvalsh(K).min() > 0


def test_a_rectangle_is_part_of_the_square(X):
    kernel = tl.kernel(SMALL)
    np.testing.assert_allclose(kernel(X[:4], X[4:]), kernel(X)[:4, 4:], atol=1e-7)
    assert kernel(X[:4], X[4:]).shape == (4, 17)


def test_kernels_are_homogeneous_without_a_head_and_scale_free_with_one(X):
    scaled = X * np.linspace(0.1, 3.0, len(X))[:, None, None, None]
    with_head, without = tl.kernel(SMALL), tl.kernel("conv3 relu pool2 conv3 relu globalpool")
    factors = np.multiply.outer(np.linspace(0.1, 3.0, len(X)), np.linspace(0.1, 3.0, len(X)))
    np.testing.assert_allclose(with_head(scaled), with_head(X), atol=1e-7)
    np.testing.assert_allclose(without(scaled), factors * without(X), rtol=1e-6)


def test_mirroring_both_images_changes_nothing(X):
    kernel = tl.kernel(SMALL)
    flipped = X[:, :, ::-1]
    np.testing.assert_allclose(kernel(flipped, flipped), kernel(X), atol=1e-7)


def test_mirrored_is_half_the_sum_over_both_mirror_images(X):
    kernel = tl.kernel(SMALL)
    mirrored = kernel.mirrored()
    for backend, tolerance in [("reference", 1e-14), ("cpu", 1e-7)]:
        part = X[:5]
        expected = (kernel(part, part, backend=backend) + kernel(part, part[:, :, ::-1], backend=backend)) / 2
        np.testing.assert_allclose(mirrored(part, backend=backend), expected, atol=tolerance)
        np.testing.assert_allclose(mirrored(part, part, backend=backend), expected, atol=tolerance)
    K = mirrored(X)
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_array_equal(np.diagonal(K), mirrored.diag(X))


def test_kernels_add_multiply_and_scale(X):
    first, second = tl.kernel(SMALL), tl.kernel("normalize globalpool")
    np.testing.assert_array_equal((first + second)(X), first(X) + second(X))
    np.testing.assert_array_equal((first * second)(X), first(X) * second(X))
    np.testing.assert_array_equal((0.5 * first)(X), 0.5 * first(X))
    np.testing.assert_array_equal((first * 2 + second)(X, X[:3]), 2 * first(X, X[:3]) + second(X, X[:3]))
    np.testing.assert_allclose((first + second).diag(X), np.diagonal((first + second)(X)))
    assert first + second == tl.kernel(SMALL) + tl.kernel("normalize globalpool")
    assert first + second != first * second
    assert len({first, 0.5 * first, 0.5 * tl.kernel(SMALL)}) == 2
    assert repr(0.5 * (first + second)) == f"0.5 * ({first!r} + {second!r})"
    with pytest.raises(TypeError):
        first + 1
    with pytest.raises(ParameterError, match="at least 0"):
        -1 * first


def test_kernels_are_divided_by_positive_numbers_and_added_by_sum():
    k = tl.kernel(SMALL)
    assert (sum([k, k]), k / 2, k / np.float64(4)) == (k + k, 0.5 * k, 0.25 * k)
    for divisor in (0, -1, float("nan")):
        with pytest.raises(ParameterError, match="finite number above 0"):
            k / divisor
    for wrong in (lambda: k / k, lambda: 2 / k, lambda: 1 + k):
        with pytest.raises(TypeError):
            wrong()


def test_parameters_can_be_read():
    kernel = tl.kernel("conv3 gaussian(0.5) globalpool")
    assert kernel.architecture.layers[1].gamma == 0.5


def test_single_precision_integers_and_views_are_taken_as_they_are(X):
    kernel = tl.kernel(SMALL)
    bytes_in = (X * 40 + 120).clip(0, 255).astype(np.uint8)
    np.testing.assert_array_equal(kernel(bytes_in), kernel(bytes_in.astype(np.float64)))
    turned = np.asfortranarray(X)[::-1]
    np.testing.assert_array_equal(kernel(turned), kernel(np.ascontiguousarray(turned)))
    np.testing.assert_allclose(kernel(X.astype(np.float32)), kernel(X), atol=2e-6)


def test_torch_tensors_come_back_as_torch_tensors(X):
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    kernel, images = tl.kernel(SMALL), np.array(X)
    tensor = torch.from_numpy(images)
    channels_first = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).permute(0, 2, 3, 1)
    for one in (tensor, tensor.clone().requires_grad_(), channels_first):
        values = kernel(one), kernel(one[:3], one[3:]), kernel(one[:3], images[3:]), kernel.diag(one)
        wanted = kernel(images), *2 * [kernel(images[:3], images[3:])], kernel.diag(images)
        for found, expected in zip(values, wanted, strict=True):
            assert isinstance(found, torch.Tensor)
            assert found.dtype == torch.float64
            np.testing.assert_array_equal(found.detach().numpy(), expected)
    assert isinstance(kernel(images[:3], tensor[3:]), np.ndarray)


@pytest.mark.parametrize("turn", ["bfloat16", "to_sparse", "neg_nan"])
def test_bad_tensors_are_refused_with_a_reason(X, turn):
    torch = pytest.importorskip("torch", reason="PyTorch is an extra")
    tensor = torch.from_numpy(np.array(X))
    bad = tensor * torch.nan if turn == "neg_nan" else getattr(tensor, turn)()
    with pytest.raises(InputError, match="NaN" if turn == "neg_nan" else "make it dense, of a dtype that NumPy has"):
        tl.kernel(SMALL)(bad)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.ones(5), InputError, "1 axes"),
        (np.ones((2, 3, 4, 5, 6)), InputError, "5 axes"),
        (np.ones((0, 8, 8, 2)), InputError, "empty"),
        (np.ones((3, 8, 0, 2)), InputError, "empty"),
        (np.ones((2, 8, 8, 2), dtype=object), InputError, "dtype object"),
        (np.ones((2, 8, 8, 2), dtype=complex), InputError, "dtype complex128"),
        (np.ones((2, 8, 8, 2), dtype=np.longdouble), InputError, "cannot hold exactly"),
        (np.full((2, 8, 8, 2), 2**53 + 1), InputError, "2\\*\\*53"),
        (np.full((2, 8, 8, 2), "a"), InputError, "dtype <U1"),
        (np.full((2, 8, 8, 2), np.nan), InputError, "NaN or infinite values, first in row 0"),
        (np.full((2, 8, 8, 2), np.inf), InputError, "NaN or infinite"),
        (np.full((2, 8, 8, 2), 1e200), InputError, "1e\\+200 in row 0"),
        (np.full((2, 8, 8, 2), 1e-200), InputError, "rescale them"),
        (np.ma.masked_greater(np.ones((2, 8, 8, 2)), 0.5), InputError, "fill the masked values"),
        ([[1.0, 2.0], [3.0]], InputError, "different shapes"),
        (np.ones((2, 7, 8, 2)), ArchitectureError, "pool2 does not divide an axis of 7"),
        (
            np.ones((2, 64)),
            ArchitectureError,
            r"conv3 needs a sequence or an image.*reshape X to images \(N, H, W, C\)",
        ),
    ],
)
def test_bad_images_are_refused_with_a_reason(values, error, message):
    with pytest.raises(error, match=message) as raised:
        tl.kernel(SMALL)(values)
    assert isinstance(raised.value, TangentlessError)
    assert isinstance(raised.value, ValueError)


def test_two_sets_of_different_shapes_are_refused(X):
    with pytest.raises(InputError, match="X holds 8×8 with 2 channels, Z holds 8×8 with 3 channels"):
        tl.kernel(SMALL)(X, np.ones((2, 8, 8, 3)))
    with pytest.raises(InputError, match="NaN or infinite values, first in row 1"):
        tl.kernel(SMALL)(X, np.array([X[0], X[1] * np.nan]))


def test_vectors_have_no_mirror_image():
    with pytest.raises(InputError, match="no mirror image"):
        tl.kernel("relu").mirrored()(np.ones((2, 3)))


def test_square_sequences_are_taken_with_a_warning_at_the_line_of_the_caller():
    k, X = tl.kernel(SMALL), np.random.default_rng(0).standard_normal((3, 8, 8))
    for call in (lambda: k(X), lambda: k(X, X), lambda: k.diag(X), lambda: k.vjp(X, None, np.ones((3, 3)))):
        with pytest.warns(UserWarning, match="for grey images add a channel axis") as caught:
            call()
        assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(
    ("shape", "dtype", "remedy"),
    [
        ((2, 3, 32, 32), np.float32, r"images of 3×32 with 32 channels; channels come first in it: X\.transpose\(0, 2"),
        ((2, 1, 28, 20), np.float32, r"X\.permute\(0, 2, 3, 1\)"),
        ((32, 32, 3), np.float32, r"sequences of length 32 with 3 channels; a single image is X\[None\]"),
        ((48, 64, 3), np.uint8, r"a single image is X\[None\]"),
        ((28, 28, 1), np.float32, r"a single image is X\[None\]"),
        ((2, 28, 20), np.uint8, r"for grey images add a channel axis, X\[\.\.\., None\]"),
        ((2, 28, 20), np.float32, r"for grey images add a channel axis"),
    ],
)
def test_axes_that_are_probably_wrong_are_named_with_the_remedy(shape, dtype, remedy):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    with pytest.warns(UserWarning, match=remedy):
        check_images(pixels)


@pytest.mark.parametrize("shape", [(5, 32, 32, 3), (5, 7, 9, 24), (5, 4, 6, 2), (5, 50, 1), (100, 50, 300), (9, 4)])
def test_axes_that_are_right_are_taken_without_a_word(shape, recwarn):
    check_images(np.random.default_rng(0).standard_normal(shape))
    one_hot = np.eye(20)[np.random.default_rng(0).integers(0, 20, (3, 30))]
    check_images(one_hot)
    assert not len(recwarn)


def test_values_whose_products_leave_float64_are_refused_for_that_reason():
    tl.kernel("relu")(np.full((2, 3), 1e100))
    with pytest.raises(InputError, match=r"values of size 2e\+100 in row 0; kernels multiply several values"):
        tl.kernel("relu")(np.full((2, 3), 2e100))


def run_python(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout


def test_import_loads_nothing_that_takes_long_to_load():
    heavy = {"sklearn", "torch", "cupy", "dask", "distributed", "matplotlib", "pandas", "PIL", "rich", "typer"}
    loaded = run_python("import sys, tangentless; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not heavy & set(loaded)


def test_completion_offers_the_public_names_and_no_others():
    assert sorted(dir(tl)) == sorted(tl.__all__)
    assert all(hasattr(tl, name) for name in tl.__all__)


def test_a_first_call_compiles_nothing_that_an_earlier_process_compiled(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    script = (
        "import numpy as np, tangentless as tl\n"
        "from numba.core.event import install_recorder\n"
        "with install_recorder('numba:compile') as compiled:\n"
        f"    tl.kernel({SMALL!r})(np.load({str(tmp_path / 'X.npy')!r}))\n"
        "print(len(compiled.buffer))\n"
    )
    run_python(script)  # compiles, unless an earlier process did
    assert int(run_python(script)) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_memory_beyond_the_result_is_bounded():
    script = (
        "import os, resource, numpy as np, tangentless as tl\n"
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"  # threads have own memory
        "k = tl.kernel('conv3 relu globalpool normalize relu')\n"
        "X = np.random.default_rng(0).standard_normal((4000, 3, 3, 1)).astype(np.float32)\n"
        "k(X[:100])\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "K = k(X)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 - K.nbytes)\n"
    )
    assert int(run_python(script)) < 160e6  # the matrix itself has 128e6 bytes


def test_the_reference_interprets_no_pair_of_positions_by_itself(rng):
    """Python loops run over positions only, and NumPy over pairs of positions; otherwise tests would take too long."""

    def calls(side):
        counted = []
        images = rng.standard_normal((2, side, side, 2))
        sys.setprofile(lambda frame, event, argument: counted.append(event))
        try:
            tl.kernel(SMALL)(images, backend="reference")
        finally:
            sys.setprofile(None)
        return len(counted)

    calls(4)  # imports and caches
    assert calls(12) <= 9 * calls(4)  # 9 times the positions, 81 times the pairs of positions
