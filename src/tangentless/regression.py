"""Ridge regression on a kernel, alone or as an ensemble over random copies of the training images.

Each member of an ensemble is fitted to its own random copies of the images, drawn by an `Augmentation`. Members are
fitted one after the other, and predictions are averaged. The leave-one-out prediction of an image is the mean, over the
members, of what a member predicts for its copy of the image after leaving that copy out. It has a closed form because
that of each member has. The copies follow from a seed, so only the images and the coefficients are kept.

Members may see a view of the images. Their shares in the mean are those of the smallest squared error of leave-one-out;
a regressor has shares for each target.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from .backends import AnyDevice, Precision
from .choosing import BLOCK, choose_images
from .chunks import spans
from .devices import Device
from .errors import ArchitectureError, InputError, NotPositiveDefinite, ParameterError
from .fitting import ENTRIES_AT_ONCE, AnyKernel, KernelEstimator, part_of
from .inputs import put_beside, to_host
from .layers import is_whole
from .preprocessing import Augmentation, mirror
from .solve import (
    Criterion,
    RidgeSolution,
    check_tilt,
    choose_landmarks,
    solve_nystroem,
    solve_ridge,
)
from .solve.checks import fixed_ridge
from .solve.pivoted import check_count, choose_rows
from .solve.scores import member_shares
from .symmetries import Symmetry, Transform
from .views import View

Array = NDArray[np.float64]


class KernelRidge(KernelEstimator):
    """The base of the two estimators by ridge regression: their parameters and the linear algebra."""

    ridge: float | str
    tilt: float | str
    landmarks: int | None
    landmarks_by: str
    augmentation: Augmentation | None
    ensemble: int
    averaging: str | Symmetry | None
    landmarks_: NDArray[np.intp] | None
    augmentation_: Augmentation | None = None  # that of the fit; the parameter may have changed since
    kernels_: list[Any]  # one kernel for each member
    shares_: Array  # of each member in the mean of predictions, (members,) or (members, targets)

    def __init__(
        self,
        kernel: AnyKernel = "myrtle5",
        ridge: float | str = 1e-4,
        flips: bool = False,
        backend: str | AnyDevice = "auto",
        precision: Precision = "float32",
        n_jobs: int | None = None,
        tilt: float | str = 0.0,
        store: str | os.PathLike[str] | None = None,
        landmarks: int | None = None,
        landmarks_by: str = "variance",
        verbose: bool = False,
        augmentation: Augmentation | None = None,
        ensemble: int = 1,
        averaging: str | Symmetry | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_parameters(locals())

    def _check_parameters(self) -> None:
        super()._check_parameters()
        fixed_ridge(self.ridge)
        check_tilt(self.tilt)
        if self.landmarks_by not in ("variance", "random"):
            raise ParameterError(f"landmarks_by is 'variance' or 'random', not {self.landmarks_by!r}")
        if self.landmarks is not None and self.tilt != 0.0:
            raise ParameterError("tilt does not work with landmarks; set tilt=0, or leave landmarks out")
        self.check_copies()

    def check_copies(self) -> None:
        """Check augmentation, ensemble and averaging: raise if members would be equal, or if there are no images."""
        if self.augmentation is not None and not isinstance(self.augmentation, Augmentation):
            raise ParameterError(f"augmentation must be an Augmentation, or None; not {self.augmentation!r}")
        if not is_whole(self.ensemble) or self.ensemble < 1:
            raise ParameterError(f"ensemble is the number of members, a whole number from 1, not {self.ensemble!r}")
        if self.averaging is not None:
            Symmetry.parse(self.averaging)
        if self.ensemble > (1 if self.augmentation is None else self.augmentation.draws):
            raise ParameterError(
                f"some of {self.ensemble} members would be the same with augmentation={self.augmentation}; let it draw "
                "random copies, such as Augmentation(crop=2), or set ensemble=1"
            )
        if self.ensemble == 1 and self.augmentation is not None and self.augmentation.view is not None:
            raise ParameterError(
                f"every second member sees {self.augmentation.view}, and ensemble=1 has one member; set ensemble=2, or "
                "leave the view out"
            )
        if self._precomputed and (self.augmentation is not None or self.averaging is not None):
            raise ParameterError("augmentation and averaging need images, and a precomputed matrix has none")
        if self.augmentation is not None and self.landmarks is not None:
            raise ParameterError(
                "an ensemble has no landmarks; leave them out, or set augmentation=None and ensemble=1"
            )

    def _solve(self, X: NDArray[Any], targets: Array, weights: Array | None, criterion: Criterion) -> Array:
        """Fit the coefficients to targets (N, targets); returns the leave-one-out values, of the same shape."""
        device = self._device()
        self._transforms(X)  # raises for images to which they do not apply
        if self.landmarks is not None:
            return self._solve_on_landmarks(device, X, targets, weights, criterion)
        self.augmentation_ = self.augmentation
        self._prepare_kernel(device)
        self._prepare_members(X.shape[1:])
        self.X_fit_, self.landmarks_ = None if self._precomputed else X.copy(), None
        problem = _Problem(device, targets, weights, criterion)
        # Ridge and tilt are chosen on the first member, so that all members have the same.
        ridge, tilt, fits = self.ridge, self.tilt, []
        for member in range(self.ensemble):
            fits.append(self._solve_member(problem, X, member, ridge, tilt))
            ridge, tilt = fits[0].ridge, fits[0].tilt
        self.ridge_, self.tilt_ = float(ridge), float(tilt)
        left_out = [fit.leave_one_out for fit in fits]
        self.shares_ = member_shares(targets, left_out, self._views, weights, apart=criterion == "squared error")
        coefficients = np.stack([fit.coefficients for fit in fits])
        self.dual_coef_ = coefficients[0] if self.augmentation_ is None else coefficients
        return np.asarray(sum(share * one for share, one in zip(self.shares_, left_out, strict=True)))

    @property
    def _views(self) -> list[str | None]:
        return [None] if self.augmentation_ is None else self.augmentation_.views(self.ensemble)

    def _prepare_members(self, shape: tuple[int, ...]) -> None:
        """Make the kernels of all members, and check that images of this shape suit them, before any is computed."""
        self.kernels_ = [self.kernel_ if view is None else self._kernel_object(view) for view in self._views]
        for view, kernel in zip(self._views, self.kernels_, strict=True):
            if view is not None:
                with _naming_view(view):
                    for leaf in kernel.leaves():
                        leaf.elements(shape)

    def _solve_member(
        self, problem: _Problem, X: NDArray[Any], member: int, ridge: float | str, tilt: float | str
    ) -> RidgeSolution:
        """Fit one member. Its matrix is freed on return, so only one is in memory at a time."""
        X, kernel, view = self._copies(X, member), self.kernels_[member], self._views[member]
        K = X if kernel is None else self._matrix(kernel, problem.device, X, store=self._store(member))
        K = self._keep_copy(K)
        targets, weights = problem.targets, problem.weights
        kept = np.arange(len(X)) if weights is None else np.flatnonzero(weights)
        partial = len(kept) < len(X)  # rows without weight take no part
        with self._shown("solution"), _naming_view(view), self._advising_float64(X, view):
            solution = solve_ridge(
                part_of(K, kept, kept) if partial else K,
                targets[kept],
                ridge,
                weights=None if weights is None else weights[kept],
                tilt=tilt,
                criterion=problem.criterion,
                overwrite=partial or not self._precomputed,
                backend=problem.device,
            )
        coefficients, left_out = np.zeros_like(targets), np.empty_like(targets)
        coefficients[kept], left_out[kept] = to_host(solution.coefficients), to_host(solution.leave_one_out)
        if partial:
            others = np.setdiff1d(np.arange(len(X)), kept)
            left_out[others] = to_host(part_of(K, others, kept) @ solution.coefficients)
        return replace(solution, coefficients=coefficients, leave_one_out=left_out)

    def _copies(self, X: Any, member: int) -> Any:
        """The training rows of a member: its random copies, which are the same at every call."""
        return X if self.augmentation_ is None else self.augmentation_.copy(X, member)

    def _store(self, member: int) -> str | os.PathLike[str] | None:
        if self.store is None or self.augmentation is None:
            return self.store
        return f"{os.fspath(self.store)}/draw{member}"

    def _solve_on_landmarks(
        self, device: Device, X: NDArray[Any], targets: Array, weights: Array | None, criterion: Criterion
    ) -> Array:
        self.augmentation_ = None
        self._prepare_kernel(device)
        self.kernels_, self.shares_ = [self.kernel_], np.ones(1)
        kept = np.arange(len(X)) if weights is None else np.flatnonzero(weights)
        chosen = kept[self._choose_landmarks(device, X, kept)]
        if self.kernel_ is None:
            C, W = X[:, chosen], X[np.ix_(chosen, chosen)]
        else:
            W = to_host(self.kernel_.on_device(device, X[chosen]))
            C = to_host(self._matrix(self.kernel_, device, X, X[chosen], store=self.store))
        solution = solve_nystroem(C, W, targets, self.ridge, weights=weights, criterion=criterion)
        self.ridge_, self.tilt_, self.landmarks_ = solution.ridge, 0.0, chosen
        self.X_fit_, self.dual_coef_ = None if self._precomputed else X[chosen], solution.coefficients
        if self._precomputed:  # new rows come with the kernel against all training rows
            self.dual_coef_ = np.zeros_like(targets)
            self.dual_coef_[chosen] = solution.coefficients
        return solution.leave_one_out

    def _choose_landmarks(self, device: Device, X: NDArray[Any], kept: NDArray[np.intp]) -> NDArray[np.intp]:
        check_count(self.landmarks, len(kept), " as landmarks")
        count = int(self.landmarks or 0)
        if self.landmarks_by == "random":
            return choose_landmarks(len(kept), count)
        if self.kernel_ is not None:
            return choose_images(self.kernel_, device, X[kept], count, block=BLOCK)
        K = part_of(X, kept, kept)
        return choose_rows(lambda rows, columns: K[rows][:, columns], K.diagonal(), count)

    @contextmanager
    def _advising_float64(self, X: NDArray[Any], view: str | None) -> Iterator[None]:
        """Advise float64 in the error for a singular matrix, if no two rows are the same."""
        try:
            yield
        except NotPositiveDefinite as error:
            if self._precomputed or self.precision_ == "float64":
                raise
            # Views of equal images may differ by rounding; float32 makes them equal.
            shown = X if view is None else View.parse(view)(X).astype(np.float32)
            if _has_duplicates(shown, self.flips):
                raise
            raise NotPositiveDefinite(
                f"{error}; or compute with more digits, precision='float64': no two rows are the same"
            ) from None

    def _values(self, X: Any) -> Array:
        """Predicted targets, averaged over members of the ensemble and copies of the rows."""
        rows, found = self._read(X), []
        for coefficients, known, kernel, transform in self._terms(rows):
            panels = self._panels(transform(rows), len(coefficients), known, kernel)
            found.append(np.concatenate([to_host(panel @ put_beside(coefficients, panel)) for panel in panels]))
        return np.asarray(sum(found[1:], found[0]))

    def _terms(self, rows: NDArray[Any]) -> Iterator[tuple[Array, Any, Any, Transform]]:
        """Yield the terms of which predictions for `rows` are the sum, one for each member and each transform of them.

        A term is (coefficients times share, training rows, kernel, transform). Members whose share is zero are skipped.
        """
        members = [self.dual_coef_] if self.augmentation_ is None else self.dual_coef_
        transforms = self._transforms(rows)
        for member, (share, coefficients) in enumerate(zip(self.shares_, members, strict=True)):
            if not np.any(share):
                continue
            known = None if self.X_fit_ is None else self._copies(self.X_fit_, member)
            for transform in transforms:
                yield share / len(transforms) * coefficients, known, self.kernels_[member], transform

    def _transforms(self, rows: NDArray[Any]) -> tuple[Transform, ...]:
        """The transforms of `averaging`, which may have been set after the fit."""
        if self.averaging is None:
            return (Transform(),)
        symmetry = Symmetry.parse(self.averaging)
        symmetry.check(rows)
        return symmetry.transforms

    def value_gradient(self, X: Any, weights: Any) -> Array:
        """The gradient of `sum(weights * values)` by the pixels of X, in the shape of X.

        `values`, (M, targets) or (M,) for a regressor of one target, are the predicted targets before any class is
        chosen; `weights` has the same shape.
        """
        check_is_fitted(self)
        if self.kernel_ is None or self.X_fit_ is None:
            raise ParameterError("a precomputed matrix has no pixels to take gradients by; fit the model to images")
        rows = self._read(X).astype(np.float64)
        device, total = self._fitted_device(), np.zeros_like(rows)
        weights, terms = np.asarray(weights), list(self._terms(rows))
        shape = (len(rows), *terms[0][0].shape[1:])
        if weights.shape != shape:
            raise InputError(f"weights has shape {weights.shape}, but values have shape {shape}; give one for each")
        weights = weights.reshape(len(rows), math.prod(shape[1:]))
        for coefficients, known, kernel, transform in terms:
            copies = transform(rows)
            for part in spans(len(rows), max(1, ENTRIES_AT_ONCE // len(coefficients))):
                by = weights[part] @ coefficients.reshape(len(coefficients), -1).T
                found = kernel.vjp(copies[part], known, by, wrt="X", backend=device)[0]
                total[part] += transform.back(found)
        return total


@dataclass(frozen=True, eq=False)
class _Problem:
    """The part of the regression problem that is the same for all members of an ensemble."""

    device: Device
    targets: Array  # (N, targets)
    weights: Array | None  # (N,)
    criterion: Criterion


@contextmanager
def _naming_view(view: str | None) -> Iterator[None]:
    """Name the view in errors of a member that sees one."""
    try:
        yield
    except (ArchitectureError, InputError, NotPositiveDefinite) as error:
        if view is None:
            raise
        raise type(error)(f"a member of the ensemble sees {view}: {error}") from None


def _has_duplicates(X: NDArray[Any], flips: bool) -> bool:
    """Whether two rows are equal; with flips, also whether one is the mirror image of another."""
    seen = {min(row.tobytes(), mirror(row[None]).tobytes()) if flips else row.tobytes() for row in X}
    return len(seen) < len(X)
