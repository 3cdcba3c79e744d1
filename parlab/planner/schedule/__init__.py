"""Simulate pipeline schedules on a network, bound them from below, choose one. Pure; see docs/understand/network.md."""

from .answer_json import WrittenAnswer, written
from .bound import Bound, bound_of_any, fastest_of, lower_bound, share_within
from .calibration import BACKWARD_PER_FORWARD, calibrate, split_times, stage_times
from .choice import WIRE_BYTES, Choice, Outcome, Plan, Wire, best_schedule, on_wire, outcome, rule_slope
from .pipeline import MAX_PASSES, Link, Pipeline, StageTimes, uniform
from .scenario import Answer, Refusal, Scenario, answer, code_of, plan_of, refusals
from .simulation import Simulation, simulate

__all__ = [
    "BACKWARD_PER_FORWARD",
    "MAX_PASSES",
    "WIRE_BYTES",
    "Answer",
    "Bound",
    "Choice",
    "Link",
    "Outcome",
    "Pipeline",
    "Plan",
    "Refusal",
    "Scenario",
    "Simulation",
    "StageTimes",
    "Wire",
    "WrittenAnswer",
    "answer",
    "best_schedule",
    "bound_of_any",
    "calibrate",
    "code_of",
    "fastest_of",
    "lower_bound",
    "on_wire",
    "outcome",
    "plan_of",
    "refusals",
    "rule_slope",
    "share_within",
    "simulate",
    "split_times",
    "stage_times",
    "uniform",
    "written",
]
