"""Solving with kernel matrices. Everything here takes a matrix; nothing here depends on images or kernels."""

from ..errors import DoesNotFit
from .checks import check_ridge, check_targets, check_weights, is_number
from .conjugate import ConjugateSolution, NotConverged, Step, solve_conjugate
from .diagnosis import Diagnosis, diagnose
from .factor import Factor, factorise, solve_ridge
from .matrices import memory_needed
from .nystroem import NystroemSolution, choose_landmarks, solve_nystroem
from .path import RidgePath, ridge_path
from .primal import PrimalSolution, solve_primal
from .scores import Calibration, Criterion, calibration, fit_scale, probabilities
from .svm import Separators, scaled_price
from .tilt import RidgeSolution, check_tilt

__all__ = [
    "Calibration",
    "ConjugateSolution",
    "Criterion",
    "Diagnosis",
    "DoesNotFit",
    "Factor",
    "NotConverged",
    "NystroemSolution",
    "PrimalSolution",
    "RidgePath",
    "RidgeSolution",
    "Separators",
    "Step",
    "calibration",
    "check_ridge",
    "check_targets",
    "check_tilt",
    "check_weights",
    "choose_landmarks",
    "diagnose",
    "factorise",
    "fit_scale",
    "is_number",
    "memory_needed",
    "probabilities",
    "ridge_path",
    "scaled_price",
    "solve_conjugate",
    "solve_nystroem",
    "solve_primal",
    "solve_ridge",
]
