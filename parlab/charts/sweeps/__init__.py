"""Figures of experiments: the points of sweeps, compared."""
