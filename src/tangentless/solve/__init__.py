"""Solving with kernel matrices: everything here takes a matrix and knows nothing of images."""

from .ridge import RidgeSolution, check_ridge, check_targets, solve_ridge

__all__ = ["RidgeSolution", "check_ridge", "check_targets", "solve_ridge"]
