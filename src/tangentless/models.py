"""Model files: a fitted estimator as an archive of arrays and JSON (see `files`), so that reading it runs no code.

The arrays are the training images (or support vectors) in their own dtype, coefficients, leave-one-out values, classes,
and the arrays of preprocessing. The header holds versions, kernel, parameters, precision and image shape. A file that
is damaged, or is no model, raises `InputError`.

A pipeline may turn its input, such as photographs of uint8, into images of more bytes. The file then holds the input as
`inputs` instead of the images, and `load_model` computes the images again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline, make_pipeline

from .backends import AnyDevice
from .errors import InputError, ParameterError, TangentlessError
from .estimators import KernelRidgeClassifier, KernelRidgeRegressor, KernelSVC
from .expression import Makers, read_kernel
from .features import PatchFeatures
from .features.saving import (
    AnyStep,
    describe_features,
    describe_step,
    features_of,
    kernel_makers,
    restore_features,
    restore_steps,
    through,
)
from .files import Arrays, Header, check_output, load_archive, save_archive
from .inputs import check_images
from .kernel import Kernel, kernel_of
from .layers import is_whole, own_layers
from .preprocessing import ZCA, Augmentation
from .preprocessing.whitening import LowRank
from .processes import GaussianProcessClassifier, GaussianProcessRegressor
from .solve import Factor, Separators, check_ridge, check_targets, is_number
from .solve.dirichlet import ClassFactors, noises
from .symmetries import Symmetry

FORMAT, VERSION = "tangentless model", 3  # 2: whitening by few images or by patches; 3: inputs
_KINDS: dict[str, type[Any]] = {
    "classifier": KernelRidgeClassifier,
    "regressor": KernelRidgeRegressor,
    "svc": KernelSVC,
    "process": GaussianProcessRegressor,
    "process classifier": GaussianProcessClassifier,
}
_LONGEST_KERNEL = 10_000  # characters
_REMEDY = "if it has a layer or a kernel of your own, import the module that registers it first (tangentless.register)"


def save_model(path: str | Path, model: Any, *, force: bool = False) -> None:
    """Write a fitted estimator, or a pipeline of preprocessing and an estimator; `force` overwrites an existing file.

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
    before, estimator = _split_pipeline(model)
    header, arrays = _describe(estimator)
    header["features"], more = describe_features(estimator.kernel_)
    if own := _own_layers(estimator.kernel_):
        header["own_layers"] = own
    steps = [describe_step(step) for step in before]
    header["preprocessing"] = [text for text, _ in steps]
    arrays |= {f"{name}{place}": array for place, (_, own) in enumerate(steps) for name, array in own.items()}
    save_archive(path, FORMAT, VERSION, header, _with_inputs(arrays, before) | more)


def load_model(path: str | Path, *, backend: str | AnyDevice = "auto", n_jobs: int | None = None) -> Any:
    """Read the fitted estimator or pipeline that `save_model` wrote. It keeps the precision of the fit.

    >>> load_model("nowhere.npz")
    Traceback (most recent call last):
        ...
    tangentless.errors.InputError: cannot read nowhere.npz: No such file or directory
    """
    header, arrays = load_archive(path, FORMAT, VERSION)
    try:
        _check_header(header)
        restore = _RESTORE.get(header["kind"], _restore_ridge)
        inputs = _numbers(arrays, "inputs", "fiub") if "inputs" in arrays else None
        shape = tuple(header["shape"])
        steps, made = restore_steps(header["preprocessing"], functools.partial(_floats, arrays), shape, inputs, backend)
        if "images" not in arrays and (rows := _trained_rows(arrays, made)) is not None:
            arrays["images"] = rows
        images = check_images(_numbers(arrays, "images", "fiub"), "images")
        kernel = _read_kernel(header, arrays, images.shape[1:])
        options = {"kernel": kernel, "backend": backend, "n_jobs": n_jobs, "precision": header["precision"]}
        model: Any = restore(header, arrays, images, options | {"flips": header["flips"]})
    except TangentlessError as error:
        raise InputError(f"{path} cannot be used as a model: {error}") from None
    return make_pipeline(*steps, model) if steps else model


def _split_pipeline(model: Any) -> tuple[list[AnyStep], Any]:
    """The preprocessing steps and the estimator of a model; raises if one of them cannot be saved or is not fitted."""
    steps = [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]
    *before, estimator = steps
    if not isinstance(estimator, tuple(_KINDS.values())) or not all(isinstance(step, AnyStep) for step in before):
        names = " | ".join(type(step).__name__ for step in steps)
        raise ParameterError(
            f"a model file can hold an estimator of this package, alone or in a pipeline after ZCA, Standardize or "
            f"features of patches; it cannot hold {names}"
        )
    for step in steps:
        if not hasattr(step, "n_features_in_"):
            raise ParameterError(f"this {type(step).__name__} is not fitted yet; call fit before saving it")
    return before, estimator


def _with_inputs(arrays: Arrays, steps: list[AnyStep]) -> Arrays:
    """The arrays of a file, with the pipeline's inputs in place of the images computed from them if that is smaller."""
    rows = inputs = _inputs(steps)
    if inputs is None:
        return arrays
    replaceable = []
    for place, step in enumerate(steps):
        if _equal(arrays.get(f"images{place}"), rows):
            replaceable.append(f"images{place}")
        rows = through(step, rows)
    if _equal(arrays["images"], _trained_rows(arrays, rows)):
        replaceable.append("images")
    if inputs.nbytes >= sum(arrays[name].nbytes for name in replaceable):
        return arrays
    return {"inputs": inputs} | {name: array for name, array in arrays.items() if name not in replaceable}


def _inputs(steps: list[AnyStep]) -> NDArray[Any] | None:
    """The images that a pipeline was fitted to, if its first step keeps them; else None."""
    if not steps or isinstance(step := steps[0], PatchFeatures):
        return None
    if isinstance(step, ZCA) and isinstance(step.form_, LowRank) and not step.copies:
        return step.form_.images
    return step.inputs_


def _equal(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    return one is not None and other is not None and one.dtype == other.dtype and np.array_equal(one, other)


def _trained_rows(arrays: Arrays, rows: NDArray[Any] | None) -> NDArray[Any] | None:
    """Of all training rows, those that a model keeps: support vectors, landmarks, or all. None if indices are bad."""
    for name in ("support", "landmarks"):
        if rows is not None and name in arrays:
            places = _numbers(arrays, name, "i")
            rows = rows[places] if places.size and places.min() >= 0 and places.max() < len(rows) else None
    return rows


def _describe(model: Any) -> tuple[Header, Arrays]:
    """The header and the arrays of a fitted estimator, without preprocessing."""
    from . import __version__

    if model.X_fit_ is None:
        raise ParameterError("a model of a precomputed matrix has no images, so it cannot be saved; fit it to images")
    _check_unchanged(model)
    header: Header = {
        "versions": {"tangentless": __version__, "numpy": np.__version__, "scikit-learn": sklearn.__version__},
        "kind": next(name for name, kind in _KINDS.items() if isinstance(model, kind)),
        "kernel": _kernel_text(model.kernel),
        "flips": bool(model.flips),
        "precision": model.precision_,
        "shape": list(model.X_fit_.shape[1:]),
    }
    arrays = {"images": model.X_fit_}
    if isinstance(model, GaussianProcessRegressor | GaussianProcessClassifier):
        return _describe_process(header, arrays, model)
    if not isinstance(model, KernelRidgeRegressor):
        header["class_weight"] = _plain_weights(model.class_weight)
        arrays["classes"] = _plain_classes(model.classes_)
    if isinstance(model, KernelSVC):
        parts = model.separators_
        arrays |= {"support": model.support_, "coefficients": parts.coefficients, "intercepts": parts.intercepts}
        price = model.C if model.C == "scale" else float(model.C)
        return header | {"C": price, "C_": model.C_}, arrays | {"counts": parts.counts}
    chosen = {"ridge_": model.ridge_, "tilt_": model.tilt_, "leave_one_out_score": model.loo_score_}
    parameters = {"ridge": model.ridge, "tilt": model.tilt}
    given = {name: value if value == "loo" else float(value) for name, value in parameters.items()}
    arrays["coefficients"] = model.dual_coef_
    if model.augmentation_ is not None:
        header["augmentation"], arrays["shares"] = model.augmentation_.to_json(), model.shares_
    if model.averaging is not None:
        header["averaging"] = str(Symmetry.parse(model.averaging))
    if model.landmarks is not None:
        header["landmarks_by"] = model.landmarks_by
        arrays["landmarks"] = model.landmarks_
    if isinstance(model, KernelRidgeClassifier):
        return header | chosen | given | {"scale_": model.scale_}, arrays | {"leave_one_out": model.loo_decision_}
    return header | chosen | given, arrays | {"leave_one_out": model.loo_predictions_}


def _check_unchanged(model: Any) -> None:
    """Raise if parameters do not name the kernel and landmarks of the fit any more: the file would hold neither."""
    model._check_parameters()
    asked, fitted = (getattr(model, name, None) is not None for name in ("landmarks", "landmarks_"))
    if asked != fitted or model._precomputed or model._kernel_object() != model.kernel_:
        raise ParameterError(
            "kernel, flips or landmarks were changed after the fit; fit again, or set them back to save"
        )


def _kernel_text(kernel: Any) -> str:
    """The text of a kernel; raises if reading the text does not give the same kernel."""
    kernel = kernel_of(kernel)
    text = repr(kernel)
    try:
        if _parse_kernel(text, kernel_makers(features_of(kernel))) == kernel:
            return text
    except InputError:
        pass
    raise ParameterError(f"{text} does not read back as the same kernel, so a model with it cannot be saved")


def _plain_classes(classes: NDArray[Any]) -> NDArray[Any]:
    if classes.dtype == object:
        if not all(isinstance(label, str) for label in classes):
            raise ParameterError("only classes that are numbers or text can be saved in a model")
        return classes.astype(str)
    return classes


def _plain_weights(weights: Any) -> Any:
    """Weights of classes for JSON: a dictionary becomes pairs of class and weight."""
    if not isinstance(weights, dict):
        return weights
    return [[np.asarray(label).item(), float(weight)] for label, weight in weights.items()]


def _check_header(header: Header) -> None:
    if header.get("kind") not in list(_KINDS):  # a list: the value may be of any type, and not hashable
        raise InputError(f"it is a {header.get('kind')!r}, and not one of {', '.join(_KINDS)}")
    for name, is_valid in _FIELDS.items():
        if not is_valid(header.get(name)):
            raise InputError(f"its header has no valid {name!r}")


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "kernel": lambda value: isinstance(value, str) and len(value) <= _LONGEST_KERNEL,
    "flips": lambda value: isinstance(value, bool),
    "precision": lambda value: value in ("float32", "float64"),
    "shape": lambda value: isinstance(value, list) and all(is_whole(side) and side > 0 for side in value),
    "preprocessing": lambda value: isinstance(value, list),
}


def _field(header: Header, name: str) -> float:
    if not is_number(header.get(name)):
        raise InputError(f"its header has no valid {name!r}")
    return float(header[name])


def _choice(header: Header, name: str, *words: str) -> float | str:
    """A field that is one of some words, or a number; the estimator checks its range."""
    return str(header[name]) if header.get(name) in words else _field(header, name)


def _read_kernel(header: Header, arrays: Arrays, shape: tuple[int, ...]) -> Kernel:
    if list(shape) != header["shape"]:
        raise InputError(f"its images are of shape {shape}, but its header says {header['shape']}")
    features = restore_features(header.get("features", []), functools.partial(_floats, arrays))
    kernel = _parse_kernel(header["kernel"], kernel_makers(features))
    for leaf in kernel.leaves():
        leaf.elements(shape)  # raises where images of this shape do not fit
    own = _own_layers(kernel)
    if header.get("own_layers", own) != own:
        raise InputError(
            f"a layer of your own computes something else now ({own}) than when the model was saved "
            f"({header['own_layers']}); load it with the class as it was, or fit again"
        )
    return kernel


def _own_layers(kernel: Kernel) -> str:
    return "; ".join(text for leaf in kernel.leaves() for text in own_layers(leaf.drawn or ()))


def _parse_kernel(text: str, makers: Makers) -> Kernel:
    try:
        return read_kernel(text, makers, _REMEDY)
    except Exception as error:  # the text comes from a file, and may raise anything, such as RecursionError
        raise InputError(f"its kernel cannot be read: {error}") from None


def _restore_ridge(header: Header, arrays: Arrays, images: NDArray[Any], options: dict[str, Any]) -> Any:
    """A fitted ridge estimator: set all that `fit` sets, and check that the shapes of the arrays agree."""
    kind = _KINDS[header["kind"]]
    options |= {name: _choice(header, name, "loo") for name in ("ridge", "tilt")}
    if kind is KernelRidgeClassifier:
        options["class_weight"] = _read_weights(header)
    landmarks = _read_landmarks(header, arrays, len(images))
    if landmarks is not None:
        options |= {"landmarks": len(images), "landmarks_by": header["landmarks_by"]}
    coefficients = _numbers(arrays, "coefficients", "f")
    if header.get("augmentation") is not None:
        options |= {"augmentation": Augmentation.from_json(header["augmentation"]), "ensemble": len(coefficients)}
    model = kind(**options, averaging=header.get("averaging"))
    model._check_parameters()
    model.landmarks_, model.augmentation_ = landmarks, model.augmentation
    _attach(model, images)
    model._prepare_members(images.shape[1:])
    model.shares_ = (
        np.full(model.ensemble, 1 / model.ensemble) if "shares" not in arrays else _numbers(arrays, "shares", "f")
    )
    model.dual_coef_ = coefficients
    model.ridge_, model.tilt_ = _field(header, "ridge_"), _field(header, "tilt_")
    model.loo_score_ = _field(header, "leave_one_out_score")
    left_out = _numbers(arrays, "leave_one_out", "f")
    expected = coefficients.shape if model.augmentation is None else coefficients.shape[1:]
    if expected[:1] != (len(images),):
        raise InputError(f"{len(images)} images do not go with coefficients of shape {coefficients.shape}")
    if model.shares_.shape not in ((model.ensemble,), (model.ensemble, *expected[1:])):
        raise InputError(f"shares of shape {model.shares_.shape} do not go with {model.ensemble} members")
    if isinstance(model, KernelRidgeClassifier):
        model.classes_, model.scale_ = _read_classes(arrays), _field(header, "scale_")
        if expected[1:] != (len(model.classes_),):
            raise InputError(f"{len(model.classes_)} classes do not go with coefficients of shape {expected}")
        model.loo_decision_ = left_out
        expected = expected if len(model.classes_) > 2 else expected[:1]
    if landmarks is not None:  # leave-one-out values are those of all training rows, not of the landmarks only
        if len(left_out) <= int(landmarks.max()):
            raise InputError(f"{len(left_out)} rows have no landmark {landmarks.max()}")
        expected = (len(left_out), *expected[1:])
    if left_out.shape != expected:
        raise InputError(f"its array 'leave_one_out' is of shape {left_out.shape}, and not {expected}")
    classifier = isinstance(model, KernelRidgeClassifier)
    model.loo_predictions_ = model._labels(left_out) if classifier else left_out
    return model


def _restore_svc(header: Header, arrays: Arrays, images: NDArray[Any], options: dict[str, Any]) -> KernelSVC:
    model = KernelSVC(C=_choice(header, "C", "scale"), class_weight=_read_weights(header), **options)
    model._check_parameters()
    _attach(model, images)
    model.C_ = _field(header, "C_" if "C_" in header else "C")
    model.classes_ = _read_classes(arrays)
    model.support_ = _numbers(arrays, "support", "i")
    names = {"coefficients": "f", "intercepts": "f", "counts": "i"}
    parts = Separators(*(_numbers(arrays, name, kinds) for name, kinds in names.items()))
    classes, support = len(model.classes_), len(images)
    shapes = (model.support_.shape, parts.coefficients.shape, parts.intercepts.shape, parts.counts.shape)
    if shapes != ((support,), (classes - 1, support), (classes * (classes - 1) // 2,), (classes,)):
        raise InputError(f"its arrays do not belong together: {support} support vectors, and shapes {shapes}")
    if (parts.counts < 0).any() or parts.counts.sum() != support:
        raise InputError(f"counts of {parts.counts.tolist()} do not go with {support} support vectors")
    model.separators_ = parts
    return model


def _read_landmarks(header: Header, arrays: Arrays, count: int) -> NDArray[Any] | None:
    if "landmarks_by" not in header and "landmarks" not in arrays:
        return None
    places = _numbers(arrays, "landmarks", "i")
    if header.get("landmarks_by") not in ("variance", "random"):
        raise InputError("its header has no valid 'landmarks_by'")
    if places.shape != (count,) or len(np.unique(places)) < count or places.min() < 0:
        raise InputError(f"its landmarks do not go with {count} images")
    return places


def _attach(model: Any, images: NDArray[Any]) -> None:
    """Set the attributes that all fitted estimators have."""
    model.X_fit_, model.precision_ = images, model.precision
    model.n_features_in_ = math.prod(images.shape[1:])
    model.kernel_ = model._kernel_object()


def _describe_process(header: Header, arrays: Arrays, model: Any) -> tuple[Header, Arrays]:
    """Header and arrays of a Gaussian process: its factor and its targets, from which the rest follows."""
    if isinstance(model, GaussianProcessRegressor):
        names, factor = ("noise", "scale"), model.factor_
        header["noise_"], arrays["targets"], arrays["scales"] = model.noise_, model.y_fit_, np.atleast_1d(model.scale_)
    else:
        names, factor = ("concentration", "scale"), model.processes_.factor
        header |= {"concentration_": model.concentration_, "scale_": model.scale_}
        arrays |= {"classes": _plain_classes(model.classes_), "codes": model.codes_fit_}
    given = {name: getattr(model, name) for name in names}
    header |= {name: value if isinstance(value, str) else float(value) for name, value in given.items()}
    return header, arrays | {"factor": factor.pack()}


def _restore_process(header: Header, arrays: Arrays, images: NDArray[Any], options: dict[str, Any]) -> Any:
    scale, packed = _choice(header, "scale", "mle"), _numbers(arrays, "factor", "f")
    if header["kind"] == "process":
        noise = _choice(header, "noise", "mle", "loo")
        model: Any = GaussianProcessRegressor(noise=noise, scale=scale, **options)
        ridge = model.noise_ = check_ridge(_field(header, "noise_"))
    else:
        concentration = _choice(header, "concentration", "loo")
        model = GaussianProcessClassifier(concentration=concentration, scale=scale, **options)
        used = GaussianProcessClassifier(concentration=_field(header, "concentration_"), scale=_field(header, "scale_"))
        used._check_parameters()
        model.concentration_, model.scale_ = used.concentration, used.scale
        ridge = noises(model.concentration_)[1] / model.scale_
    model._check_parameters()
    _attach(model, images)
    factor = Factor.unpack(packed, np.full(len(images), ridge), ridge, backend=model._device())
    if isinstance(model, GaussianProcessRegressor):
        targets = check_targets(_numbers(arrays, "targets", "f"), len(images))
        scales = _numbers(arrays, "scales", "f") if "scales" in arrays else None  # files of 0.1.0 have none
        if scales is not None and scales.shape != targets.reshape(len(targets), -1).shape[1:]:
            raise InputError(f"scales of shape {scales.shape} do not go with targets of shape {targets.shape}")
        model._attach(factor, targets, scales)
        return model
    model.classes_, model.codes_fit_ = _read_classes(arrays), _numbers(arrays, "codes", "i")
    codes, count = model.codes_fit_, len(model.classes_)
    if codes.shape != (len(images),) or codes.min() < 0 or codes.max() >= count:
        raise InputError(f"its codes do not go with {len(images)} images of {count} classes")
    model._attach(ClassFactors(factor, codes, count, model.concentration_, model.scale_))
    return model


_RESTORE = {"svc": _restore_svc, "process": _restore_process, "process classifier": _restore_process}


def _floats(arrays: Arrays, name: str, rows: NDArray[Any] | None = None) -> NDArray[Any]:
    """An array of a preprocessing step. `rows` is its input, and stands in for images that the file does not hold."""
    if name.startswith("images"):
        return rows if rows is not None and name not in arrays else _numbers(arrays, name, "fiub")
    return _numbers(arrays, name, "f")


def _numbers(arrays: Arrays, name: str, kinds: str) -> NDArray[Any]:
    """An array of finite numbers; `kinds` are the allowed values of `dtype.kind`."""
    array = arrays.get(name)
    if array is None or array.ndim == 0 or array.dtype.kind not in kinds:
        raise InputError(f"it has no valid array {name!r}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"its array {name!r} holds NaN or infinite values")
    return array


def _read_classes(arrays: Arrays) -> NDArray[Any]:
    classes = arrays.get("classes")
    if classes is None or classes.ndim != 1 or len(classes) < 2:
        raise InputError("it has no valid array 'classes'")
    if len(np.unique(classes)) != len(classes):
        raise InputError("its classes are not distinct")
    return classes


def _read_weights(header: Header) -> Any:
    weights = header.get("class_weight")
    if weights is None or weights == "balanced":
        return weights
    try:
        return {label: float(weight) for label, weight in weights}
    except (TypeError, ValueError):
        raise InputError("its header has no valid 'class_weight'") from None
