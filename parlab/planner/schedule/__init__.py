"""Pipeline schedules on a network: simulated, bounded from below, chosen. Pure; see docs/simulation.md."""

from .bound import Bound, lower_bound
from .calibration import BACKWARD_PER_FORWARD, calibrate, split_times, stage_times
from .choice import WIRE_BYTES, Choice, Outcome, Plan, Wire, best_schedule, on_wire, outcome, rule_slope
from .pipeline import MAX_MICRO_BATCHES, MAX_RANKS, Link, Pipeline, StageTimes, uniform
from .simulation import Pass, Simulation, Transfer, simulate

__all__ = [
    "BACKWARD_PER_FORWARD",
    "MAX_MICRO_BATCHES",
    "MAX_RANKS",
    "WIRE_BYTES",
    "Bound",
    "Choice",
    "Link",
    "Outcome",
    "Pass",
    "Pipeline",
    "Plan",
    "Simulation",
    "StageTimes",
    "Transfer",
    "Wire",
    "best_schedule",
    "calibrate",
    "lower_bound",
    "on_wire",
    "outcome",
    "rule_slope",
    "simulate",
    "split_times",
    "stage_times",
    "uniform",
]
