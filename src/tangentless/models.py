"""Model files: a fitted estimator as an .npz of arrays and one JSON text, so that nothing in it can run when read.

Arrays: `images` (the training images, in their own dtype), `coefficients`, `leave_one_out`, and the `classes` of a
classifier. The text, `header`, holds the rest: format and version, architecture, ridge, flips, precision, image shape.
A file is checked whole when it is loaded; what is damaged, or made by something else, raises `InputError`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .backends import Backend
from .errors import InputError, ParameterError, TangentlessError
from .estimators import KernelRidgeClassifier, KernelRidgeRegressor
from .files import check_output, load_archive, save_archive
from .inputs import check_images
from .kernel import CompositionalKernel, Kernel
from .program import compile_program
from .solve import check_ridge

Model = KernelRidgeClassifier | KernelRidgeRegressor

FORMAT, VERSION = "tangentless model", 1
_KINDS: dict[str, type[Any]] = {"classifier": KernelRidgeClassifier, "regressor": KernelRidgeRegressor}


def save_model(path: str | Path, model: Model, *, force: bool = False) -> None:
    """Write a fitted estimator to one file; an existing one is replaced only with `force`.

    >>> import tempfile
    >>> X = np.random.default_rng(0).standard_normal((20, 3))
    >>> model = KernelRidgeClassifier("relu", backend="reference").fit(X, X[:, 0] > 0)
    >>> path = Path(tempfile.mkdtemp()) / "model.npz"
    >>> save_model(path, model)
    >>> bool(np.all(load_model(path, backend="reference").predict(X) == model.predict(X)))
    True
    """
    path = Path(path)
    check_output(path, force=force)
    save_archive(path, _to_arrays(model))


def load_model(path: str | Path, *, backend: str | Backend = "auto", n_jobs: int | None = None) -> Model:
    """The estimator that `save_model` wrote, fitted, with a backend of its own."""
    arrays = load_archive(path)
    try:
        header = _read_header(arrays)
        model: Model = _KINDS[header["kind"]](
            kernel=header["architecture"],
            ridge=check_ridge(header["ridge"]),
            flips=header["flips"],
            backend=backend,
            precision=header["precision"],
            n_jobs=n_jobs,
        )
        _restore(model, header, arrays)
    except TangentlessError as error:
        raise InputError(f"{path} cannot be used as a model: {error}") from None
    return model


def _to_arrays(model: Model) -> dict[str, NDArray[Any]]:
    if not hasattr(model, "dual_coef_"):
        raise ParameterError(f"this {type(model).__name__} is not fitted yet; call fit before saving it")
    if model.X_fit_ is None:
        raise ParameterError("a model of a precomputed matrix has no images to predict from, so it cannot be saved")
    header = {
        "format": FORMAT,
        "version": VERSION,
        "package": _package_version(),
        "kind": next(name for name, kind in _KINDS.items() if isinstance(model, kind)),
        "architecture": _architecture_text(model.kernel),
        "ridge": float(model.ridge),
        "flips": bool(model.flips),
        "precision": model.precision,
        "shape": list(model.X_fit_.shape[1:]),
        "leave_one_out_score": model.loo_score_,
    }
    arrays = {"header": np.array(json.dumps(header)), "images": model.X_fit_, "coefficients": model.dual_coef_}
    if isinstance(model, KernelRidgeClassifier):
        return {**arrays, "leave_one_out": model.loo_decision_, "classes": _plain_classes(model.classes_)}
    return {**arrays, "leave_one_out": model.loo_predictions_}


def _architecture_text(kernel: Any) -> str:
    """The text form, if it says all there is to the kernel."""
    if isinstance(kernel, Kernel):
        if not isinstance(kernel, CompositionalKernel):
            raise ParameterError(f"only the kernel of one architecture can be saved in a model, not {kernel!r}")
        kernel = kernel.architecture
    architecture = Architecture.of(kernel)
    text = str(architecture)
    try:
        if Architecture.parse(text) == architecture:
            return text
    except TangentlessError:
        pass
    raise ParameterError(f"{text!r} does not read back as the same layers, so a model with it cannot be saved")


def _plain_classes(classes: NDArray[Any]) -> NDArray[Any]:
    if classes.dtype == object:
        if not all(isinstance(label, str) for label in classes):
            raise ParameterError("only classes that are numbers or text can be saved in a model")
        return classes.astype(str)
    return classes


def _read_header(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    text = arrays.get("header")
    if text is None or text.shape != () or text.dtype.kind != "U":
        raise InputError("it has no header; models are written by `tangentless fit` and `save_model`")
    try:
        header = json.loads(str(text))
    except ValueError:
        raise InputError("its header is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError("its header is of something else")
    if header.get("version") != VERSION:
        raise InputError(f"its format is version {header.get('version')}, and this package reads version {VERSION}")
    expected: dict[str, Any] = {
        "kind": str,
        "architecture": str,
        "ridge": int | float,
        "flips": bool,
        "precision": str,
        "shape": list,
        "leave_one_out_score": int | float,
    }
    for name, kind in expected.items():
        if not isinstance(header.get(name), kind):
            raise InputError(f"its header has no valid {name!r}")
    if header["kind"] not in _KINDS:
        raise InputError(f"it is a {header['kind']!r}, and not one of {', '.join(_KINDS)}")
    if header["precision"] not in ("float32", "float64"):
        raise InputError(f"its precision is {header['precision']!r}")
    return header


def _restore(model: Model, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    """Set what `fit` sets, after checking that the parts belong together."""
    images = check_images(_numbers(arrays, "images", "fiub"), "images")
    coefficients, left_out = _numbers(arrays, "coefficients", "f"), _numbers(arrays, "leave_one_out", "f")
    if list(images.shape[1:]) != header["shape"]:
        raise InputError(f"its images are of shape {images.shape[1:]}, but its header says {header['shape']}")
    if len(coefficients) != len(images):
        raise InputError(f"{len(images)} images do not go with {len(coefficients)} rows of coefficients")
    compile_program(Architecture.parse(header["architecture"]), images.shape[1:-1], images.shape[-1])
    model.X_fit_, model.dual_coef_ = images, coefficients
    model.n_features_in_ = int(np.prod(images.shape[1:]))
    model.kernel_ = model._kernel_object()
    model.loo_score_ = float(header["leave_one_out_score"])
    if isinstance(model, KernelRidgeRegressor):
        model.loo_predictions_ = _of_shape(left_out, coefficients.shape)
        return
    model.classes_ = _classes(arrays, coefficients)
    model.loo_decision_ = _of_shape(left_out, coefficients.shape if len(model.classes_) > 2 else (len(images),))
    model.loo_predictions_ = model._labels(left_out)


def _of_shape(left_out: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if left_out.shape != shape:
        raise InputError(f"its array 'leave_one_out' is of shape {left_out.shape}, and not {shape}")
    return left_out


def _numbers(arrays: dict[str, NDArray[Any]], name: str, kinds: str) -> NDArray[Any]:
    array = arrays.get(name)
    if array is None or array.ndim == 0 or array.dtype.kind not in kinds:
        raise InputError(f"it has no valid array {name!r}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"its array {name!r} holds NaN or infinite values")
    return array


def _classes(arrays: dict[str, NDArray[Any]], coefficients: NDArray[Any]) -> NDArray[Any]:
    classes = arrays.get("classes")
    if classes is None or classes.ndim != 1 or classes.dtype.kind not in "biufU":
        raise InputError("it has no valid array 'classes'")
    if coefficients.ndim != 2 or coefficients.shape[1] != len(classes) or len(classes) < 2:
        raise InputError(f"{len(classes)} classes do not go with coefficients of shape {coefficients.shape}")
    if len(np.unique(classes)) != len(classes):
        raise InputError("its classes are not distinct")
    return classes


def _package_version() -> str:
    from . import __version__

    return __version__
