"""Advice for the schedule of a pipeline by simulation: measured passes on the links of the run, also shaped ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.planner.schedule import Pipeline, Plan, Wire, best_schedule, on_wire, outcome
from parlab.planner.schedule.choice import Outcome

from .advice import Advice

_RULE = "simulation of the measured passes before and after the change"
_LARGEST_MESSAGE = 4
"""Bytes per value from which 16 bits are fewer."""


@dataclass(frozen=True)
class Passes:
    """The pipeline of a run with its measured or configured pass times."""

    pipeline: Pipeline
    """With messages in the precision that they are computed in."""
    plan: Plan
    wire: Wire
    number_bytes: int

    def on(self, wire: Wire) -> Pipeline:
        """Return the pipeline with another precision of its messages."""
        return on_wire(self.pipeline, wire, self.number_bytes)


def simulated(waterfall: Waterfall, passes: Passes, spread: dict[str, float]) -> list[Advice]:
    """Return the best change of the schedule and of the wire; empty for interleaved schedules.

    The chunks of an interleaved schedule have times of their own, which other schedules have not.
    """
    if passes.plan.virtual_stages > 1:
        return []
    own = passes.on(passes.wire)
    before = outcome(passes.plan, own, passes.wire)
    candidates = [after for after in _schedules(passes, own) if after.plan != passes.plan]
    rows = []
    if candidates:
        best = min(candidates, key=lambda after: after.simulation.iteration_s)
        settings = {
            "parallel.schedule": best.plan.name,
            "parallel.warmup_slope": best.plan.warmup_slope,
            "parallel.virtual_stages": 1,
        }
        title = f"Schedule {best.plan.title} instead of {passes.plan.title}"
        rows.append(_advice(waterfall, "schedule", title, before, best, settings, spread["schedule"]))
    if passes.wire == "same" and passes.number_bytes >= _LARGEST_MESSAGE:
        after = outcome(passes.plan, passes.on("bf16"), "bf16")
        settings = {"parallel.wire_precision": "bf16"}
        rows.append(_advice(waterfall, "wire", "Send activations in bf16", before, after, settings, spread["wire"]))
    return rows


def _schedules(passes: Passes, pipeline: Pipeline) -> Iterator[Outcome]:
    """Yield the smallest slope of 1F1B that is nearly as fast as the steepest one, and the other schedules."""
    yield best_schedule(pipeline).best
    for name in ("gpipe", "zb-h1"):
        yield outcome(Plan(name), pipeline, passes.wire)


def _advice(
    waterfall: Waterfall,
    kind: str,
    title: str,
    before: Outcome,
    after: Outcome,
    settings: dict[str, object],
    spread: float,
) -> Advice:
    """Return the advice for a change; what the simulation does not contain stays in the step."""
    before_s, after_s = before.simulation.iteration_s, after.simulation.iteration_s
    gain = (before_s - after_s) / max(waterfall.total_s, before_s)
    part = max(("bubble", "pipeline"), key=waterfall.ns)
    share = 100 * (waterfall.share("bubble") + waterfall.share("pipeline"))
    evidence = (
        f"Stages wait {share:.3g} % of the measured step; the simulation takes {after_s:.3g} s instead of"
        f" {before_s:.3g} s, with {after.held} instead of {before.held} micro batches in flight"
    )
    return Advice(kind, title, gain, gain - spread, min(1.0, gain + spread), part, _RULE, evidence, settings)
