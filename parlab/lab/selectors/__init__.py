"""Reads shaped for a page or a figure."""

from .experiments import (
    ExperimentRow,
    LaunchPlan,
    StateCount,
    Versions,
    experiment_list,
    experiment_runs,
    experiment_versions,
    launch_plan,
    state_counts,
)
from .nodes import NodeRow, node_list
from .runs import ConfigSection, RunRow, by_hand, command_line, config_sections, flat, remaining_s, run_row, run_rows
from .sweep import METRICS, Cell, Sweep, SweepTable, run_points, sweep_tables

__all__ = [
    "METRICS",
    "Cell",
    "ConfigSection",
    "ExperimentRow",
    "LaunchPlan",
    "NodeRow",
    "RunRow",
    "StateCount",
    "Sweep",
    "SweepTable",
    "Versions",
    "by_hand",
    "command_line",
    "config_sections",
    "experiment_list",
    "experiment_runs",
    "experiment_versions",
    "flat",
    "launch_plan",
    "node_list",
    "remaining_s",
    "run_points",
    "run_row",
    "run_rows",
    "state_counts",
    "sweep_tables",
]
