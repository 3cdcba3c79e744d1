"""Predict time, memory, layouts and cost of a training before it runs. Pure; see docs/planner.md."""

from .calibration import DEFAULT, Calibration, Observation, calibrate
from .cluster import Cluster, Link, cluster
from .prediction import Prediction, predict, predict_job
from .workload import Job, Model

__all__ = [
    "DEFAULT",
    "Calibration",
    "Cluster",
    "Job",
    "Link",
    "Model",
    "Observation",
    "Prediction",
    "calibrate",
    "cluster",
    "predict",
    "predict_job",
]
