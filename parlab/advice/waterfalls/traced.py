"""What a trace adds to the waterfall: the parts of the passes that no timer separates, measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .waterfall import Kind

Row = tuple[str, float, Kind, str]


class TracedStep(NamedTuple):
    """Parts of a traced step as shares of it (0 to 1), mean over the traced ranks."""

    ranks: int
    products: float
    """Matrix products, attention and convolutions."""
    others: float
    """All other kernels, without those of the optimizer."""
    exposed: float
    """Communication that no compute covers."""
    host: float
    """Nothing runs, and the next kernel has not been launched; on a processor, Python."""
    step_s: float = 0.0
    """Time of a traced step (s)."""


class Passes(NamedTuple):
    """The timed forward and backward passes of a step, in seconds."""

    step_s: float
    compute_s: float
    outside_s: float
    """Communication that timers measure outside of the passes."""
    ideal_s: float
    useful: float
    """Model FLOPs / executed FLOPs: below 1 with recomputation."""
    inner: Sequence[tuple[str, float]]
    """Communication inside the passes by term, as the planner predicts it."""


def rows_without_timers(traced: TracedStep, passes: Passes, *, has_ideal: bool) -> list[Row]:
    """Split a step by a trace alone: what its kernels, its exposed communication and its host take of the step."""
    if has_ideal:
        return traced_rows(traced, passes)
    source, step_s = f"trace of {traced.ranks} rank{'' if traced.ranks == 1 else 's'}", passes.step_s
    compute_s = min(step_s, (traced.products + traced.others) * step_s)
    rest = traced_rows(traced._replace(products=0.0, others=0.0), passes._replace(compute_s=step_s - compute_s))
    return [("compute", compute_s, "measured", f"{source}: kernels"), *rest]


def traced_rows(traced: TracedStep, passes: Passes) -> list[Row]:
    """Split the passes by a trace. The rows after the ideal add up to at most what the passes leave of it."""
    source = f"trace of {traced.ranks} rank{'' if traced.ranks == 1 else 's'}"
    left_s = max(0.0, passes.compute_s - passes.ideal_s)
    products_s, others_s = traced.products * passes.step_s, traced.others * passes.step_s
    repeated_s = (1 - passes.useful) * (products_s + others_s)
    inner_s = max(0.0, traced.exposed * passes.step_s - passes.outside_s)
    planned_s = sum(seconds for _, seconds in passes.inner)
    parts: list[Row] = [
        ("matrix_rate", passes.useful * products_s - passes.ideal_s, "measured",
         f"{source}: matrix products - the ideal"),
        ("kernels", passes.useful * others_s, "measured", f"{source}: kernels that are not matrix products"),
        ("recompute", repeated_s, "derived", f"{source}: kernels x recomputed share of the FLOPs"),
        *(
            (key, inner_s * seconds / planned_s, "measured" if len(passes.inner) == 1 else "derived",
             f"{source}: exposed communication - that of the timers")
            for key, seconds in passes.inner
            if planned_s > 0
        ),
        ("host", traced.host * passes.step_s, "measured", f"{source}: nothing runs and nothing is launched"),
    ]  # fmt: skip
    rows = []
    for key, seconds, kind, basis in parts:
        taken_s = min(left_s, max(0.0, seconds))
        if taken_s:
            rows.append((key, taken_s, kind, basis))
            left_s -= taken_s
    return rows
