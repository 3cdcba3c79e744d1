"""Experiments, their figures, and selections of runs."""
