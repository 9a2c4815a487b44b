"""A Device says where and how everything is computed, and makes its backend at the first use."""

import copy
import pickle

import numpy as np
import pytest

import tangentless as tl
from cuda_host.machine import COMPILER, HostMachine, emulate
from tangentless import backends
from tangentless.backends.cpu import CpuBackend
from tangentless.backends.reference import ReferenceBackend
from tangentless.devices import Device
from tangentless.errors import BackendError, ParameterError
from tangentless.estimators import KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC
from tangentless.models import load_model, save_model
from tangentless.preprocessing import ZCA
from tangentless.processes import GaussianProcessClassifier, GaussianProcessRegressor
from tangentless.solve import ridge_path, solve_ridge

TEXT = "conv3 relu globalpool normalize relu"
IMAGES = np.random.default_rng(0).standard_normal((60, 4, 4, 2)).astype(np.float32)
LABELS = np.arange(60) % 3


@pytest.fixture
def created(monkeypatch):
    """A list of the devices that made a backend; each gets the reference backend."""
    seen = []
    monkeypatch.setattr(backends, "create", lambda device: seen.append(device) or ReferenceBackend())
    return seen


def test_nothing_is_made_before_it_is_used(created):
    device = Device("cuda", "float64")
    assert (device, hash(device)) == (Device.of("cuda", "float64"), hash(Device("cuda", "float64")))
    assert repr(device) == "Device(name='cuda', precision='float64', n_jobs=None)"
    assert not created
    assert device.backend is device.backend
    assert created == [device]


def test_copies_are_equal_and_make_their_own(created):
    device = Device("cpu", n_jobs=3)
    for other in (copy.deepcopy(device), pickle.loads(pickle.dumps(device))):
        assert other == device
        assert other.backend is not device.backend


def test_a_backend_object_stands_for_the_device_that_it_is():
    backend = CpuBackend("float64", n_jobs=2)
    device = Device.of(backend, "float32", 7)
    assert (device.name, device.precision, device.n_jobs) == ("cpu", "float64", 2)
    assert device.backend is backend
    assert device.at("float64") is device
    with pytest.raises(ParameterError, match="computes in float64, but float32 is needed; give a backend by name"):
        device.at("float32")
    assert Device.of("cpu", "float64", 2).at("float32") == Device("cpu", "float32", 2)


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        (("gpu",), BackendError, "unknown backend 'gpu'; there are auto, reference, cpu, cuda"),
        ((3,), BackendError, "a backend is a name, .*, a Device or a backend object, not 3"),
        (("cpu", "float16"), ParameterError, "precision is 'float32' or 'float64', not 'float16'"),
        (("auto", None), ParameterError, "precision"),
    ],
)
def test_what_is_no_device_is_refused(arguments, error, complaint):
    with pytest.raises(error, match=complaint):
        Device.of(*arguments)


def test_everything_that_computes_takes_a_device(tmp_path):
    device, kernel = Device("reference"), tl.kernel("conv3 relu globalpool")
    K = kernel(IMAGES[:6], backend=device)
    np.testing.assert_array_equal(K, kernel(IMAGES[:6], backend="reference"))
    np.testing.assert_array_equal(kernel.diag(IMAGES[:6], backend=device), K.diagonal())
    np.testing.assert_array_equal(kernel.on_device(device, IMAGES[:6]), K)
    assert solve_ridge(K, LABELS[:6], 1.0, backend=device).residual < 1e-10
    assert ridge_path(K, LABELS[:6], [0.1, 1.0], backend=device).best() in (0.1, 1.0)
    np.testing.assert_array_equal(ZCA(0.1, backend=device).fit(IMAGES).whitening_, ZCA(0.1).fit(IMAGES).whitening_)
    for kind in (KernelRidgeClassifier, KernelSVC):
        expected = kind("conv3 relu globalpool", backend="reference").fit(IMAGES[:6], LABELS[:6])
        found = kind("conv3 relu globalpool", backend=device).fit(IMAGES[:6], LABELS[:6])
        stored = kind("conv3 relu globalpool", backend=device, store=tmp_path / kind.__name__)
        for model in (found, stored.fit(IMAGES[:6], LABELS[:6])):
            np.testing.assert_array_equal(model.decision_function(IMAGES), expected.decision_function(IMAGES))


@pytest.mark.parametrize("given", [{"precision": "float64"}, {"backend": Device("cpu", "float64")}])
def test_a_model_predicts_in_the_precision_it_was_fitted_with(given, created, tmp_path):
    parameters = {"kernel": "conv3 relu globalpool", "backend": "cpu"} | given
    model = KernelRidgeClassifier(**parameters).fit(IMAGES[:6], LABELS[:6])
    assert model.precision_ == "float64"
    model.set_params(precision="float32", backend="cpu")
    model.predict(IMAGES[:2])
    save_model(tmp_path / "model.npz", model)
    loaded = load_model(tmp_path / "model.npz", backend=Device("cpu", "float32", 1), n_jobs=2)
    loaded.predict(IMAGES[:2])
    assert (loaded.precision, loaded.precision_) == ("float64", "float64")
    assert [device.precision for device in created] == ["float64"] * 3
    model.fit(IMAGES[:6], LABELS[:6])  # a new fit uses the parameter as it is now
    assert (model.precision_, created[-1].precision) == ("float32", "float32")


@pytest.fixture
def downloads(monkeypatch, fake_cupy):
    """A list of the sizes of arrays that are copied from the emulated GPU to the host."""
    emulate(monkeypatch)
    download = HostMachine.download
    monkeypatch.setattr(
        HostMachine, "download", lambda self, values: fake_cupy.downloads.append(values.size) or download(self, values)
    )
    return fake_cupy.downloads


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")
@pytest.mark.parametrize("options", [{}, {"flips": True, "tilt": "loo"}, {"ridge": "loo"}], ids=str)
@pytest.mark.parametrize("weights", [None, np.arange(60) % 5 + 0.0], ids=["all", "weighted"])
def test_a_fit_on_a_gpu_never_takes_the_matrix_to_the_host(downloads, options, weights):
    model = KernelRidgeClassifier(TEXT, backend="cuda", **{"ridge": 0.1} | options)
    model.fit(IMAGES, LABELS, sample_weight=weights)
    expected = KernelRidgeClassifier(TEXT, backend="reference", **{"ridge": 0.1} | options)
    expected.fit(IMAGES, LABELS, sample_weight=weights)
    assert type(model.dual_coef_) is type(model.loo_decision_) is np.ndarray
    assert model.ridge_ == pytest.approx(expected.ridge_)
    # The kernel is computed in float32. Ridges are at least 0.1, except for "loo", whose coefficients may be large.
    scale = max(1.0, np.abs(expected.dual_coef_).max())
    np.testing.assert_allclose(model.dual_coef_, expected.dual_coef_, rtol=0, atol=1e-4 * scale)
    np.testing.assert_allclose(model.loo_decision_, expected.loo_decision_, rtol=0, atol=1e-4 * scale)
    values = model.decision_function(IMAGES[:7])
    np.testing.assert_allclose(values, expected.decision_function(IMAGES[:7]), rtol=0, atol=1e-4 * scale)
    assert max(downloads) < len(IMAGES) ** 2  # the largest: scores of 54 ridges for 60 rows, by "loo"


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")
@pytest.mark.parametrize("other_order", [False, True])
def test_a_matrix_asked_for_on_the_device_is_that_of_the_host(downloads, fake_cupy, other_order):
    images = IMAGES[:9].astype(">f4") if other_order else IMAGES[:9]
    device, kernel = Device("cuda"), tl.kernel(TEXT)
    expected = kernel(images, IMAGES[:4], backend=device)
    assert type(expected) is np.ndarray
    downloads.clear()
    for given in (images, fake_cupy.asarray(IMAGES[:9])):
        found = kernel.on_device(device, given, IMAGES[:4])
        assert isinstance(found, fake_cupy.ndarray)
        assert np.array_equal(found.view(np.ndarray), expected)
    assert not downloads


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")
def test_a_regressor_and_a_machine_fit_on_a_gpu_too(downloads):
    targets = IMAGES.mean(axis=(1, 2, 3))
    model = KernelRidgeRegressor(TEXT, ridge=0.1, backend="cuda").fit(IMAGES, targets)
    expected = KernelRidgeRegressor(TEXT, ridge=0.1, backend="reference").fit(IMAGES, targets)
    np.testing.assert_allclose(model.predict(IMAGES), expected.predict(IMAGES), rtol=0, atol=1e-5)
    assert max(downloads) <= len(IMAGES)
    machine = KernelSVC(TEXT, backend="cuda").fit(IMAGES, LABELS)
    reference = KernelSVC(TEXT, backend="reference").fit(IMAGES, LABELS)
    np.testing.assert_array_equal(machine.predict(IMAGES), reference.predict(IMAGES))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to build the kernels for the host")
def test_a_process_on_the_gpu_is_that_of_the_host_and_keeps_its_factor_there(downloads, fake_cupy):
    targets, found = IMAGES.mean(axis=(1, 2, 3)), []
    for backend in ("cuda", "reference"):
        model = GaussianProcessRegressor(TEXT, 0.1, backend=backend).fit(IMAGES[:6], targets[:6])
        model.partial_fit(IMAGES[6:8], targets[6:8])
        classifier = GaussianProcessClassifier(TEXT, backend=backend).fit(IMAGES[:8], LABELS[:8])
        chosen = KernelRidgeClassifier(TEXT, 0.1, backend=backend, landmarks=4).fit(IMAGES, LABELS)
        found.append([
            *model.predict(IMAGES, return_std=True),
            model.predict(IMAGES, return_cov=True)[1],
            model.novelty(IMAGES),
            model.sample_y(IMAGES[:3], 2),
            np.sort(model.choose(IMAGES[8:], 2)),
            classifier.predict_proba(IMAGES),
            chosen.decision_function(IMAGES),
        ])  # fmt: skip
        assert isinstance(model.factor_.work, fake_cupy.ndarray) == (backend == "cuda")
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-3 * np.abs(other).max())
