"""The waterfall of a measured step, from its timers, its FLOPs and the planner's parts.

The view is the mean over the ranks: every rank spends the step in its own compute, waits and collectives, so that the
means add up to the step. Terms that no timer separates are computed; docs/use/time.md has all definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parlab.planner.prediction.timing import Timing

from .backward_pass import Inside, inside_backward
from .terms import flops_text
from .timers import Groups, Timer, grouped, text, total
from .traced import Passes, Row, TracedStep, rows_without_timers, traced_rows
from .waterfall import Kind, Waterfall, assembled

_ZERO_BUBBLE = {"zb-h1": 0.5, "zb-h2": 0.05, "zb-v": 0.05}
"""Bubble relative to 1F1B (Qi et al. 2023, tables 3 to 5)."""
NOT_MEASURED = "no timer of this run measures it; it is in another term"
_INNER = ("tensor", "context", "expert")
"""Communication inside the passes, which the planner separates."""


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one device, with its source."""

    flops_per_s: float
    source: str
    is_measured: bool = False


@dataclass(frozen=True)
class Step:
    """A measured step: all that is known of it."""

    title: str
    step_time_s: float
    devices: int
    timers: Mapping[str, Timer] = field(default_factory=dict)
    model_flops: float | None = None
    """FLOPs that the model needs for a step, over all devices."""
    executed_flops: float | None = None
    peak: Rate | None = None
    ceiling: Rate | None = None
    stages: int = 1
    micro_batches: int = 1
    chunks: int = 1
    schedule: str = ""
    predicted: Timing | None = None
    """The planner's parts for the same configuration."""
    is_emulated: bool = False
    traced: TracedStep | None = None
    """Recorded by a profiler; its parts replace computed ones."""
    reduces_in_backward: bool = False
    """Whether gradients are reduced inside the backward pass, as DistributedDataParallel does."""
    occasional: Mapping[str, float] = field(default_factory=dict)
    """Timers of fewer than half of the steps -> every how many steps; the median step has none of them."""


def timers_of(timers_s: Mapping[str, Mapping[str, object]]) -> dict[str, Timer]:
    """Read the timers of a summary; a rank without a timer spends no time in it.

    Timers of fewer than half of the steps are left out: the median step has none of them.
    """
    ranks = {rank for timer in timers_s.values() for rank in _by_rank(timer)}
    timers = {}
    for name, timer in timers_s.items():
        by_rank, numbers = _by_rank(timer), [timer.get(part) for part in ("median", "min", "max")]
        values = [float(value) for value in numbers if isinstance(value, int | float) and 0 <= value < 1e8]
        if len(values) < 3 or "every_steps" in timer:
            continue
        mean, low, high = values
        if len(ranks) > 1 and by_rank:
            mean = sum(by_rank.values()) / len(ranks)
        elif low < high and len(by_rank) < 2:
            mean = (low + high) / 2  # logs that print the range over the ranks only
        timers[name] = Timer(mean, low, high, by_rank)
    return timers


def _by_rank(timer: Mapping[str, object]) -> dict[str, float]:
    values = timer.get("by_rank")
    if not isinstance(values, Mapping):
        return {}
    return {str(rank): float(value) for rank, value in values.items() if isinstance(value, int | float) and value >= 0}


def waterfall_of(step: Step) -> Waterfall:
    """Return the waterfall of a step. Raises ValueError if its time is not a duration."""
    groups = grouped(step.timers, step.micro_batches)
    absent = dict.fromkeys(("loading", "logging"), NOT_MEASURED)
    has_passes = bool(groups.forward or groups.backward or groups.both)
    rows = (
        _of_timers(step, groups) if has_passes else _of_trace(step, step.traced) if step.traced else _of_formulas(step)
    )
    keys = {key for key, *_ in rows}
    if step.occasional:
        listed = ", ".join(f"{name} every {every:g} steps" for name, every in step.occasional.items())
        absent["logging"] = f"the median step has none of it: {listed}"
    absent = {key: reason for key, reason in absent.items() if key not in keys}
    if step.peak is None or not step.model_flops:
        absent["ideal"] = "the FLOPs of the model are unknown" if step.peak else "the peak of the device is unknown"
    if step.is_emulated:
        absent["ideal"] = "compute is emulated: stages wait for a configured time"
    source = "its terms are shares of the traced steps" if step.traced else "all terms are computed"
    notes = [] if has_passes else [f"The run has no timers of its passes: {source}."]
    if groups.unused:
        notes.append(f"Not used, since they overlap with others or measure other work: {', '.join(groups.unused)}.")
    return assembled(step.title, step.step_time_s, rows, absent, notes)


def _of_timers(step: Step, groups: Groups) -> list[Row]:
    rows: list[Row] = []
    passes = _passes(groups)
    compute, wait = passes, total(groups.pipeline)
    inner_loading = total(groups.inner_loading).mean
    share = _bubble_share(step)
    if groups.both:
        # One timer around all passes: the bubble inside follows from the schedule.
        bubble_s = passes.mean * share / (1 + share)
        compute = Timer(passes.mean - bubble_s, *passes[1:])
        if bubble_s:
            rows.append(("bubble", bubble_s, "computed", f"{text(groups.both)} x (p - 1) / (v m + p - 1)"))
    elif step.stages > 1 and groups.pipeline:
        rows += _waits(compute, wait, share, text(groups.pipeline))
    compute_s = max(0.0, compute.mean - inner_loading)
    inside = inside_backward(groups) if step.reduces_in_backward else None
    if inside is not None:
        compute_s = max(0.0, compute_s - inside.total_s)
        rows += _inside_rows(inside)
    split = _compute(step, groups, compute_s)
    if inside is not None and inside.total_s > 0:
        rest = " - waiting and communication inside"
        split = [
            (key, s, "derived", f"{basis}{rest}") if key == "compute" else (key, s, kind, basis)
            for key, s, kind, basis in split
        ]
    rows += split
    rows += _collectives("tensor", groups.tensor) + _collectives("data", groups.data)
    if groups.optimizer:
        rows.append(("optimizer", total(groups.optimizer).mean, "measured", text(groups.optimizer)))
    for key, group in (("loading", {**groups.inner_loading, **groups.loading}), ("logging", groups.logging)):
        if group:
            rows.append((key, total(group).mean, "measured", text(group)))
    return _merged(rows)


def _inside_rows(inside: Inside) -> list[Row]:
    rows: list[Row] = [
        ("data", inside.communication_s, "derived", inside.communication_basis),
        ("straggler", inside.waiting_s, "derived", inside.waiting_basis),
    ]
    return [row for row in rows if row[1] > 0]


def _passes(groups: Groups) -> Timer:
    return total(groups.both) if groups.both else total({**groups.forward, **groups.backward})


def _bubble_share(step: Step) -> float:
    """Return the bubble relative to the compute of a stage."""
    if step.stages < 2:
        return 0.0
    return (step.stages - 1) / (step.chunks * step.micro_batches) * _ZERO_BUBBLE.get(step.schedule, 1.0)


def _waits(compute: Timer, wait: Timer, share: float, names: str) -> list[Row]:
    """Split the measured waits of the stages: bubble of the schedule, slower stages, and transfers."""
    bubble_s = min(wait.mean, share * compute.mean)
    uneven_s = min(wait.mean - bubble_s, compute.high - compute.mean)
    rows: list[Row] = [
        ("bubble", bubble_s, "derived", f"(p - 1) / (v m) = {share:.3g} of the compute, within {names}"),
        ("pipeline", wait.mean - bubble_s - uneven_s, "derived", f"rest of {names}"),
    ]
    if uneven_s > 0:
        rows.append(("straggler", uneven_s, "derived", "compute of the slowest stage - mean of the stages"))
    return rows


def _collectives(key: str, timers: Mapping[str, Timer]) -> list[Row]:
    """The rank that arrives last does not wait: its time is communication, the excess of the others is waiting."""
    if not timers:
        return []
    whole = total(timers)
    rows: list[Row] = [(key, min(whole.low, whole.mean), "measured", f"{text(timers)}, shortest over the ranks")]
    if whole.is_range and whole.mean > whole.low:
        rows.append(("straggler", whole.mean - whole.low, "measured", f"{text(timers)}, mean - shortest"))
    return rows


def _compute(step: Step, groups: Groups, compute_s: float) -> list[Row]:
    """Split the time of the passes by FLOPs and the planner's communication inside them."""
    names = text(groups.both or {**groups.forward, **groups.backward})
    if step.is_emulated or step.peak is None or not step.model_flops:
        return [("compute", compute_s, "measured", names)]
    rows = _matrix(step)
    if step.traced is not None:
        return [rows[0], *traced_rows(step.traced, _timed_passes(step, groups, compute_s, rows[0][1]))]
    left_s = max(0.0, compute_s - sum(row[1] for row in rows))
    repeated_s = min(left_s, _repeated_s(step, groups))
    if repeated_s:
        basis = "forward time x recomputed FLOPs" if groups.forward else "recomputed FLOPs at the reachable rate"
        rows.append(("recompute", repeated_s, "derived", basis))
        left_s -= repeated_s
    for key in _INNER if step.predicted else ():
        inner_s = min(left_s, getattr(step.predicted, f"{key}_s"))
        if inner_s:
            rows.append((key, inner_s, "computed", f"planner, inside {names}"))
            left_s -= inner_s
    rows.append(("kernels", left_s, "derived", f"{names} - the computed parts"))
    return rows


def _timed_passes(step: Step, groups: Groups, compute_s: float, ideal_s: float) -> Passes:
    outside_s = sum(total(group).mean for group in (groups.tensor, groups.data, groups.pipeline))
    inner = [(key, getattr(step.predicted, f"{key}_s")) for key in _INNER if step.predicted]
    executed = max(step.executed_flops or 0.0, step.model_flops or 0.0)
    useful = step.model_flops / executed if step.model_flops else 1.0
    return Passes(
        step.step_time_s, compute_s, outside_s, min(ideal_s, compute_s), useful, [row for row in inner if row[1] > 0]
    )


def _matrix(step: Step) -> list[Row]:
    """Return the time of the model FLOPs at the peak, and what the reachable rate adds."""
    if step.peak is None or not step.model_flops:
        return []
    ideal_s = step.model_flops / (step.devices * step.peak.flops_per_s)
    rows: list[Row] = [("ideal", ideal_s, "computed", f"{flops_text(step.peak.flops_per_s)}: {step.peak.source}")]
    ceiling = step.ceiling
    if ceiling is not None and ceiling.flops_per_s < step.peak.flops_per_s:
        reachable_s = step.model_flops / (step.devices * ceiling.flops_per_s)
        basis = f"{flops_text(ceiling.flops_per_s)}: {ceiling.source}"
        rows.append(("matrix_rate", reachable_s - ideal_s, "computed", basis))
    return rows


def _repeated_s(step: Step, groups: Groups) -> float:
    """Return the time of recomputation: the share of the forward pass that runs again."""
    if not step.executed_flops or not step.model_flops or step.executed_flops <= step.model_flops:
        return 0.0
    repeated = step.executed_flops - step.model_flops
    if groups.forward:
        return total(groups.forward).mean * min(1.0, repeated / (step.model_flops / 3))
    rate = step.ceiling or step.peak
    return repeated / (step.devices * rate.flops_per_s) if rate else 0.0


def _of_trace(step: Step, traced: TracedStep) -> list[Row]:
    """Return the terms of a step without timers that was traced: the shares of the traced steps."""
    matrix = [] if step.is_emulated else _matrix(step)[:1]
    executed = max(step.executed_flops or 0.0, step.model_flops or 0.0)
    useful = step.model_flops / executed if step.model_flops else 1.0
    planned = [(key, getattr(step.predicted, f"{key}_s")) for key in (*_INNER, "pipeline", "data") if step.predicted]
    inner = [row for row in planned if row[1] > 0] or [("data" if step.stages == 1 else "pipeline", 1.0)]
    ideal_s = min(step.step_time_s, sum(row[1] for row in matrix))
    passes = Passes(step.step_time_s, step.step_time_s, 0.0, ideal_s, useful, inner)
    return [*matrix, *rows_without_timers(traced, passes, has_ideal=bool(matrix))]


def _of_formulas(step: Step) -> list[Row]:
    """Return the computed terms of a step without timers: the planner's, or those of its FLOPs."""
    rows = [] if step.is_emulated else _matrix(step)
    if not rows:
        return []
    no_timers = grouped({})
    repeated_s = _repeated_s(step, no_timers)
    parts = step.predicted
    if parts is None:
        if repeated_s:
            rows.append(("recompute", repeated_s, "computed", "recomputed FLOPs at the reachable rate"))
        return rows
    left_s = max(0.0, parts.compute_s - sum(row[1] for row in rows))
    repeated_s = min(left_s, repeated_s)
    rows += _planned("recompute", repeated_s) + _planned("kernels", left_s - repeated_s)
    return rows + planned_rows(parts)


def planned_rows(parts: Timing) -> list[Row]:
    """Return the planner's terms outside of the compute."""
    rows: list[Row] = []
    for key in ("bubble", "tensor", "context", "pipeline", "data", "expert", "optimizer"):
        rows += _planned(key, getattr(parts, f"{key}_s"))
    return rows + _planned("straggler", parts.waiting_s) + _planned("fixed", parts.other_s - parts.waiting_s)


def _planned(key: str, seconds: float) -> list[Row]:
    return [(key, seconds, "computed", "planner")] if seconds > 0 else []


def _merged(rows: list[Row]) -> list[Row]:
    """Add up rows of the same term."""
    by_key: dict[str, Row] = {}
    for row in rows:
        key, seconds, kind, basis = row
        _, before_s, before_kind, before = by_key.get(key, (key, 0.0, kind, ""))
        both_kinds: Kind = kind if kind == before_kind else "derived"
        by_key[key] = (key, before_s + seconds, both_kinds, f"{before}; {basis}" if before else basis)
    return list(by_key.values())
