"""Predict time, memory, layouts and cost of a training before it runs. Pure; see docs/understand/planner.md."""

from parlab.planner.calibration.calibration import DEFAULT, Calibration, Observation, calibrate
from parlab.planner.job.cluster import Cluster, Link, cluster
from parlab.planner.job.workload import Job, Model
from parlab.planner.prediction.prediction import Prediction, predict, predict_job
from parlab.planner.publications import rows

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
    "rows",
]
