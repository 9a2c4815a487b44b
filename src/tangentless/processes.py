"""Gaussian processes whose covariance is the kernel of an infinitely wide network, as scikit-learn estimators.

The fit keeps one Cholesky factor. All results follow from it: means, standard deviations, covariances, samples, the
marginal likelihood, novelty, which images to label next, and fits with more images.

>>> import numpy as np
>>> X = np.random.default_rng(0).standard_normal((30, 3))
>>> model = GaussianProcessRegressor("relu", noise=1e-4, backend="reference").fit(X, np.maximum(X[:, 0], 0))
>>> mean, std = model.predict(X[:5], return_std=True)
>>> bool(np.all(std < 0.1))
True
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if

from .backends import AnyDevice, Precision
from .choosing import BLOCK, choose_images
from .devices import Device
from .errors import InputError, NotPositiveDefinite, ParameterError
from .fitting import AnyKernel, KernelEstimator, part_of
from .inputs import put_beside, to_host
from .labels import LabelledEstimator, NumberEstimator
from .preprocessing.rows import whole_or_not
from .solve import check_targets, factorise, is_number
from .solve.dirichlet import ClassFactors, expected_softmax, pick
from .solve.factor import Factor
from .solve.matrices import check_fits, check_kernel, receive
from .solve.path import Spectrum
from .solve.scores import maximise

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_CHOSEN_ON = 500  # a classifier chooses concentration and scale on at most so many rows


def _has_images(model: KernelEstimator) -> bool:
    """For `available_if`: models of a precomputed matrix lack the methods that need more kernel values."""
    if model._precomputed:
        raise AttributeError(
            "this needs the kernel of new images, which a precomputed matrix does not have; fit the model "
            "to images with a kernel"
        )
    return True


@contextmanager
def _advising_noise() -> Iterator[None]:
    """Call the ridge noise, as the parameter of the regressor is called, in the error for a singular matrix."""
    try:
        yield
    except NotPositiveDefinite as error:
        raise NotPositiveDefinite(str(error).replace("ridge", "noise")) from None


class _Process(KernelEstimator):
    """The base of the two estimators: kernel values and variances of new rows, novelty, and images to label next."""

    scale: float | str

    def _check_parameters(self) -> None:
        super()._check_parameters()
        chosen = isinstance(self.scale, str) and self.scale == "mle"
        if not chosen and not (is_number(self.scale) and self.scale > 0):
            raise ParameterError(f"scale must be a finite number above 0, or 'mle', not {self.scale!r}")

    @property
    @abstractmethod
    def _training_factor(self) -> Factor:
        """The factor of the training rows."""

    def _prior_variances(self, rows: NDArray[Any], prior: Any) -> Array:
        """The prior variances k(x, x) of new rows, (M,); for a precomputed matrix, those that the user gave."""
        self._refuse_prior(prior)
        if self.kernel_ is not None:
            return np.asarray(to_host(self.kernel_.diag(rows, backend=self._fitted_device())), dtype=np.float64)
        if prior is None:
            raise ParameterError("a precomputed matrix needs prior=..., the kernel of each new row with itself, (M,)")
        found = np.asarray(prior, dtype=np.float64)
        if found.shape != (len(rows),):
            raise InputError(f"prior must hold one number for each of {len(rows)} rows, not {found.shape}")
        return found

    def _refuse_prior(self, prior: Any) -> None:
        if prior is not None and self.kernel_ is not None:
            raise ParameterError("prior is for precomputed matrices; of images the kernel itself says it, leave it out")

    def _panels_with_prior(self, rows: NDArray[Any], own: Array | None) -> Iterator[tuple[Any, Any]]:
        """Yield panels of rows: their kernel values with the training rows, and their prior variances, if given."""
        start = 0
        for panel in self._panels(rows, len(self._training_factor)):
            yield panel, None if own is None else own[start : start + len(panel)]
            start += len(panel)

    def _covariances(self, rows: NDArray[Any]) -> tuple[Any, Any]:
        """k(rows, X_fit_) and k(rows, rows), in the memory of the device."""
        device = self._fitted_device()
        return self.kernel_.on_device(device, rows, self.X_fit_), self.kernel_.on_device(device, rows)

    def novelty(self, X: Any, *, prior: Any = None) -> Array:
        """How little the training images say about each row, (M,): its posterior variance without noise.

        The unit is the median of the same variance for the training images, each given all others. `prior` is as for
        `predict`.
        """
        rows = self._read(X)
        own, factor = self._prior_variances(rows, prior), self._training_factor
        typical = np.median(np.maximum(1 / to_host(factor.inverse_diagonal) - to_host(factor.added), 0.0))
        found = np.concatenate([to_host(factor.variance(*panel)) for panel in self._panels_with_prior(rows, own)])
        return np.asarray(found / max(float(typical), np.finfo(np.float64).eps * float(own.max()), 1e-300))

    @available_if(_has_images)  # type: ignore[untyped-decorator]  # scikit-learn is untyped
    def choose(self, X: Any, n: int, *, block: int = BLOCK) -> Indices:
        """The indices of the n images of X to label next: each has the largest variance, given those chosen before it.

        `block` is as for `tangentless.choose`.
        """
        rows = self._read(X)
        known = self._training_factor, self.X_fit_
        return choose_images(self.kernel_, self._fitted_device(), rows, n, block=block, known=known)


class GaussianProcessRegressor(NumberEstimator, _Process):
    """Exact Gaussian process regression of one target or many, with the covariance `scale (K + noise I)`.

    The prior mean is zero, so centre targets whose mean is far from it. The mean is that of `KernelRidgeRegressor` with
    `ridge=noise`.

    Parameters
    ----------
    kernel, flips, backend, precision, n_jobs, store, verbose, storage_options
        As of `KernelRidgeClassifier`.
    noise
        The variance of the noise, relative to the scale of the kernel. "mle" chooses the noise of the largest marginal
        likelihood, "loo" that of the largest log density of leave-one-out predictions, both by one eigendecomposition.
        Zero interpolates.
    scale
        The factor of the kernel and the noise: a number, or "mle" for that of the largest marginal likelihood, which
        has a closed form. It changes standard deviations, but not means.

    Attributes
    ----------
    noise_, scale_
        The noise and the scale of the fit; `scale_` is an array, (targets,), if y has several targets.
    log_marginal_likelihood_
        The logarithm of the likelihood of the targets, summed over targets.
    dual_coef_
        The coefficients of the training rows, of the shape of y.
    factor_
        The factor of `K + noise I`, a `tangentless.solve.Factor`.
    X_fit_, y_fit_, kernel_, precision_, n_features_in_
        The training rows, the targets, and as of `KernelRidgeClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((40, 3))
    >>> model = GaussianProcessRegressor("relu", noise="mle", backend="reference").fit(X, X[:, 0])
    >>> mean, std = model.predict(10 * X[:3], return_std=True)
    >>> mean.shape, std.shape, model.sample_y(X[:3], n_samples=5).shape
    ((3,), (3,), (3, 5))
    """

    noise: float | str
    factor_: Factor

    def __init__(
        self,
        kernel: AnyKernel = "myrtle5",
        noise: float | str = 1e-2,
        scale: float | str = "mle",
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        flips: bool = False,
        store: str | os.PathLike[str] | None = None,
        verbose: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _check_parameters(self) -> None:
        super()._check_parameters()
        chosen = isinstance(self.noise, str) and self.noise in ("mle", "loo")
        if not chosen and not (is_number(self.noise) and self.noise >= 0):
            raise ParameterError(f"noise must be a finite number of at least 0, 'mle' or 'loo', not {self.noise!r}")

    @property
    def _training_factor(self) -> Factor:
        return self.factor_

    @whole_or_not
    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X, (N, H, W, C) or (N, L, C) or (N, C), and targets y, (N,) or (N, targets)."""
        X, targets = self._read_numbers(X, y)
        self._check_targets(targets)
        device = self._device()
        K = self._training_matrix(device, X)
        self.X_fit_ = None if self._precomputed else X.copy()
        self.noise_ = self._pick_noise(K, targets, device)
        with _advising_noise():
            factor = factorise(K, self.noise_, overwrite=not self._precomputed, backend=device)
        self._attach(factor, targets)
        return self

    @available_if(_has_images)  # type: ignore[untyped-decorator]
    @whole_or_not
    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add rows and their targets. The result is that of `fit` on all rows, with the noise of the first fit.

        For 10 % more rows it computes a sixth of the kernel entries of a new fit, and a quarter of its operations. A
        store is not extended.
        """
        if not hasattr(self, "factor_"):
            return self.fit(X, y)
        rows = self._read(X)
        targets = check_targets(y, len(rows))
        if targets.shape[1:] != self.y_fit_.shape[1:]:
            raise InputError(f"y has the shape {targets.shape}, but the model was fitted to {self.y_fit_.shape}")
        covariances = self._covariances(rows)
        with _advising_noise():
            factor = self.factor_.update(*covariances)
        self.X_fit_ = np.concatenate([self.X_fit_, rows])
        self._attach(factor, np.concatenate([self.y_fit_, targets]))
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool = False,
        *,
        prior: Any = None,
    ) -> Any:
        """The mean of each row; with `return_std` also standard deviations, with `return_cov` covariances.

        Shapes are those of scikit-learn: (M,) and (M, M) for one target, (M, targets) and (M, M, targets) for several.
        `include_noise` adds the variance of the noise, as for new observations. With a precomputed matrix, standard
        deviations and covariances need `prior`, the kernel of the new rows: its diagonal (M,) for standard deviations,
        the matrix (M, M) for covariances.
        """
        rows = self._read(X)
        if return_std and return_cov:
            raise ParameterError(
                "set return_std or return_cov, not both; the diagonal of the covariances holds the variances"
            )
        if return_cov:
            return self._with_covariance(rows, include_noise, prior)
        own = self._prior_variances(rows, prior) if return_std else None
        means, variances = [], []
        for panel, some in self._panels_with_prior(rows, own):
            means.append(to_host(panel @ put_beside(self.dual_coef_, panel)))
            if some is not None:
                variances.append(to_host(self.factor_.variance(panel, some)))
        mean = np.concatenate(means)
        return mean if own is None else (mean, np.sqrt(self._scaled(np.concatenate(variances), include_noise)))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Functions drawn from the posterior at the rows of X: (M, n_samples), or (M, targets, n_samples)."""
        if self._precomputed:
            raise ParameterError(
                "a precomputed matrix has no covariances of new rows; give them to factor_.sample, or fit to images"
            )
        rows = self._read(X)
        self._check_covariance(len(rows))
        C, S = self._covariances(rows)
        seed = check_random_state(random_state).randint(2**31)
        return np.asarray(to_host(self.factor_.sample(self.y_fit_, C, S, n_samples, scale=self.scale_, seed=seed)))

    def _attach(self, factor: Factor, targets: Array, scales: Any = None) -> None:
        """Set all attributes that follow from a factor, targets, and their scales; by default those of `scale`."""
        self.factor_, self.y_fit_ = factor, targets
        self.dual_coef_ = np.asarray(to_host(factor.solve(targets)))
        if scales is None:
            scales = factor.misfits(targets) / len(targets) if self.scale == "mle" else float(self.scale)
        scales = np.broadcast_to(scales, targets.reshape(len(targets), -1).shape[1:])
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            raise InputError(f"the targets have no scale that float64 can hold ({scales}); rescale them, or give scale")
        self.scale_ = float(scales[0]) if targets.ndim == 1 else np.array(scales)
        self.log_marginal_likelihood_ = factor.log_likelihood(targets, scales)

    def _check_targets(self, targets: Array) -> None:
        if self.scale == "mle" and not targets.reshape(len(targets), -1).any(axis=0).all():
            raise InputError("a target is zero in all rows, and has no scale; drop it, or give the scale as a number")
        if isinstance(self.noise, str) and len(targets) < 3:
            raise InputError(f"noise={self.noise!r} needs at least 3 rows, and there are {len(targets)}; give a number")

    def _pick_noise(self, K: Any, targets: Array, device: Device) -> float:
        if not isinstance(self.noise, str):
            return float(self.noise)
        on, matrix, _ = receive(K, device)
        with on.working():
            spectrum = Spectrum.of(on, check_kernel(matrix), targets)
            grid = spectrum.default_ridges[spectrum.usable(spectrum.default_ridges)]
            if not grid.size:
                raise NotPositiveDefinite(
                    f"K has the eigenvalue {spectrum.values[0]:.2g}, and no noise makes it positive definite"
                )
            value = spectrum.log_likelihood if self.noise == "mle" else spectrum.log_density
            scale = None if self.scale == "mle" else float(self.scale)
            return maximise(lambda noise: value(noise, scale), grid)

    def _with_covariance(self, rows: NDArray[Any], include_noise: bool, prior: Any) -> tuple[Array, Array]:
        self._refuse_prior(prior)
        self._check_covariance(len(rows))
        if self.kernel_ is None and prior is None:
            raise ParameterError("a precomputed matrix needs prior=..., the kernel among the new rows, (M, M)")
        C, S = (rows, prior) if self.kernel_ is None else self._covariances(rows)
        found = np.asarray(to_host(self.factor_.covariance(C, S)))
        mean = to_host(C @ put_beside(self.dual_coef_, C))
        return mean, self._scaled(found, include_noise)

    def _check_covariance(self, count: int) -> None:
        targets = math.prod(self.y_fit_.shape[1:])
        needed = 8 * count * (count * (3 + targets) + len(self.y_fit_))
        what = f"the covariance of {count:,} rows and {targets} targets, {8 * count**2 * targets / 1e9:.1f} GB,"
        free = self.factor_.on.free_bytes()
        check_fits(needed, free, what, "ask for standard deviations, return_std=True, one number for a row")

    def _scaled(self, found: Array, include_noise: bool) -> Array:
        """Variances (M,) or covariances (M, M), with or without the noise, times the scale of each target."""
        if include_noise:
            found = found + self.noise_ * (1.0 if found.ndim == 1 else np.eye(len(found)))
        return found * self.scale_ if self.y_fit_.ndim == 1 else found[..., None] * self.scale_


class GaussianProcessClassifier(LabelledEstimator, _Process):
    """Classification by Gaussian processes, one for each class, exactly: Dirichlet regression (Milios et al., 2018).

    A label is read as a noisy observation of the logarithms of the class probabilities, so the posterior has a closed
    form. `predict_proba` is the expectation of the softmax over the latent functions. Far from all training images
    their variance is large, and the probabilities are almost equal. All classes share one factorisation.

    Parameters
    ----------
    kernel, flips, backend, precision, n_jobs, store, verbose, storage_options
        As of `KernelRidgeClassifier`.
    concentration
        The Dirichlet concentration of the classes that a label does not name, from 1e-12 to 1. A smaller value trusts
        labels more. "loo" chooses the one of the best leave-one-out probabilities, on 500 of the rows.
    scale
        The variance of the latent functions: a number, or "mle" for the one of the largest marginal likelihood, on the
        same rows.

    Attributes
    ----------
    classes_
        The labels, sorted.
    concentration_, scale_
        The concentration and the scale of the fit.
    log_marginal_likelihood_
        The logarithm of the likelihood of the transformed labels, summed over classes.
    processes_
        The factors of all classes, a `tangentless.solve.dirichlet.ClassFactors`.
    codes_fit_, X_fit_, kernel_, precision_, n_features_in_
        The index in `classes_` of each training row's label; the others as of `KernelRidgeClassifier`.

    Examples
    --------
    >>> X = np.random.default_rng(0).standard_normal((60, 3))
    >>> model = GaussianProcessClassifier("relu relu", backend="reference").fit(X, X[:, 0] > 0)
    >>> model.predict_proba([[5.0, 0.0, 0.0]])[0, 1] > 0.8
    np.True_
    """

    concentration: float | str
    processes_: ClassFactors

    def __init__(
        self,
        kernel: AnyKernel = "myrtle5",
        concentration: float | str = "loo",
        scale: float | str = "mle",
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        flips: bool = False,
        store: str | os.PathLike[str] | None = None,
        verbose: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _check_parameters(self) -> None:
        super()._check_parameters()
        given = self.concentration
        if not (isinstance(given, str) and given == "loo") and not (is_number(given) and 1e-12 <= given <= 1):
            raise ParameterError(f"concentration must be a number from 1e-12 to 1, or 'loo', not {given!r}")

    @property
    def _training_factor(self) -> Factor:
        return self.processes_.factor

    @whole_or_not
    def fit(self, X: Any, y: Any) -> Self:
        """Train on rows X, (N, H, W, C) or (N, L, C) or (N, C), and labels y, (N,)."""
        X, _, codes = self._read_labels(X, y)
        device = self._device()
        K = self._training_matrix(device, X)
        self.X_fit_, self.codes_fit_ = None if self._precomputed else X.copy(), codes
        self.concentration_, self.scale_ = self._pick(K, codes, device)
        options: dict[str, Any] = {"overwrite": not self._precomputed, "backend": device}
        processes = ClassFactors.of(K, codes, len(self.classes_), self.concentration_, self.scale_, **options)
        self._attach(processes)
        return self

    def latent(self, X: Any, *, prior: Any = None) -> tuple[Array, Array]:
        """Means and variances of the latent function of every class, (M, classes) each; `prior` as for `novelty`."""
        rows = self._read(X)
        panels = self._panels_with_prior(rows, self._prior_variances(rows, prior))
        found = [self.processes_.latent(*panel) for panel in panels]
        means, variances = zip(*found, strict=True)
        return np.concatenate(means), np.concatenate(variances)

    def predict_proba(self, X: Any, *, prior: Any = None) -> Array:
        """Probabilities of the classes, (M, classes): the mean softmax over the latent functions."""
        return expected_softmax(*self.latent(X, prior=prior))

    def predict(self, X: Any, *, prior: Any = None) -> NDArray[Any]:
        """The most probable class of each row."""
        best = self.predict_proba(X, prior=prior).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def _attach(self, processes: ClassFactors) -> None:
        self.processes_, self.log_marginal_likelihood_ = processes, processes.log_likelihood()

    def _pick(self, K: Any, codes: Indices, device: Device) -> tuple[float, float]:
        """Concentration and scale: those given, or those chosen on at most `_CHOSEN_ON` random rows."""
        concentration = None if isinstance(self.concentration, str) else float(self.concentration)
        scale = None if isinstance(self.scale, str) else float(self.scale)
        rows = np.arange(len(codes))
        if len(rows) > _CHOSEN_ON:
            rows = np.sort(np.random.default_rng(0).choice(rows, _CHOSEN_ON, replace=False))
        if concentration is not None and scale is not None:
            return concentration, scale
        some = part_of(K, rows, rows)
        return pick(some, codes[rows], len(self.classes_), concentration, scale, backend=device)
