"""Kernels of tensors that require gradients: their backward pass, as `torch.autograd` checks it."""

import numpy as np
import pytest

import tangentless as tl
from conformance import images
from tangentless.classical import ConvolutionalNTK, Gaussian
from tangentless.errors import InputError

torch = pytest.importorskip("torch")
KERNELS = [
    tl.kernel("conv3 relu pool2 conv3 relu globalpool normalize gaussian"),
    0.5 * tl.kernel("conv3 relu globalpool").mirrored() * Gaussian(0.1),
    ConvolutionalNTK("conv3 erf globalpool"),
]


def tensor(count, seed=0, **options):
    return torch.tensor(images((4, 2, 1), count, seed=seed), **options)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_gradcheck_passes(kernel, needed):
    X, Z = (tensor(n, seed, requires_grad=wanted) for n, seed, wanted in zip((2, 3), (0, 1), needed, strict=True))
    assert torch.autograd.gradcheck(lambda x, z: kernel(x, z, precision="float64", backend="cpu"), (X, Z))


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_gradcheck_passes_for_symmetric_matrices(kernel):
    X = tensor(3, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: kernel(x, precision="float64", backend="cpu"), (X,))


def test_gradients_flow_through_what_comes_before_and_after_in_the_precision_of_the_tensor():
    X = tensor(3, dtype=torch.float32, requires_grad=True)
    value = torch.logdet(KERNELS[0](2 * X, backend="cpu") + torch.eye(3, dtype=torch.float64))
    value.backward()
    assert X.grad.dtype == torch.float32
    K = KERNELS[0](2 * X.detach().numpy(), backend="cpu")
    expected = 2 * KERNELS[0].vjp(2 * X.detach().numpy(), None, np.linalg.inv(K + np.eye(3)).T, backend="cpu")
    np.testing.assert_allclose(X.grad.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_an_array_beside_a_tensor_that_requires_gradients_becomes_one():
    Z = tensor(2, requires_grad=True)
    K = KERNELS[0](images((4, 2, 1), 3, seed=1), Z, backend="cpu")
    K.sum().backward()
    assert isinstance(K, torch.Tensor)
    assert Z.grad.abs().max() > 0


def test_tensors_whose_gradients_are_computed_cause_no_warning(recwarn):
    X = tensor(3, requires_grad=True)
    KERNELS[0](X, backend="cpu").sum().backward()
    assert not [warning for warning in recwarn if "requires gradients" in str(warning.message)]


def test_without_gradients_nothing_is_tracked():
    X = tensor(2, requires_grad=True)
    with torch.no_grad():
        assert not KERNELS[0](X, backend="cpu").requires_grad


def test_integer_tensors_have_no_gradient():
    X = torch.ones((2, 4, 2, 1), dtype=torch.int64)
    with pytest.raises(InputError, match="int64, which has no gradient"):
        KERNELS[0].vjp(X, None, np.ones((2, 2)), backend="cpu")
    Z = tensor(2, requires_grad=True)
    KERNELS[0](X, Z, backend="cpu").sum().backward()  # integer tensors need no gradient
    assert Z.grad.abs().max() > 0


def penalty(K, gradient):
    return (gradient**2).sum()


def value_and_penalty(K, gradient):
    return K.sum() + (gradient**2).sum()


@pytest.mark.parametrize("loss", [penalty, value_and_penalty])
@pytest.mark.parametrize("power", [1, 2])  # of the entries: with 1, their cotangents are constants
def test_second_derivatives_are_refused(loss, power):
    X = tensor(2, requires_grad=True)
    K = KERNELS[0](X, backend="cpu") ** power
    (gradient,) = torch.autograd.grad(K.sum(), X, create_graph=True)
    with pytest.raises(InputError, match="first derivatives only"):
        loss(K, gradient).backward()
