"""Summary of a launch's records: the Segment of one Builder.

The first record of a launch is warm-up: `mean_without_first`, samples/s, tokens/s and TFLOP/s exclude it; median, mean,
p10 and p90 include all records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from parlab.formats import headlines, schema
from parlab.formats.builder import Builder
from parlab.formats.grammar.names import first_whole
from parlab.formats.grammar.records import Record
from parlab.formats.launch import normalise

# Rates of all GPUs by those of one are a whole number, but for their digits.
_WHOLE = 0.01
# A term of a loss, as of reinforcement learning or of experts, which is not the whole where there is another.
_TERM = re.compile(r"kl|entropy|value|critic|\bvf|aux|balanc|z_loss|mtp|regul")
_LOSSES = ("loss", "lm_loss", "train_loss", "reduced_train_loss", "total_loss")


def _record(record: Record | None) -> schema.StepRecord | None:
    if record is None:
        return None
    printed = {
        cell.key: schema.PrintedCell(value=cell.value, unit=cell.unit, name=cell.name, kind=cell.kind)
        for cell in record.printed()
    }
    return schema.StepRecord(
        iteration=record.iteration,
        line=record.line,
        time=record.time,
        rank=record.rank,
        values=record.values,
        printed=printed,
    )


def whole(value: float) -> int | None:
    """Return a count as an int; None beyond the whole numbers that a float holds exactly."""
    return int(value) if abs(value) < 2**53 else None


def _world(builder: Builder, values: Mapping[str, int | str | None]) -> tuple[int, str] | None:
    """Derive the number of GPUs, and say how: from rates of all and of one, or from the ranks that print steps."""
    steps = builder.steps.by_name
    total, each = steps.get("tokens_per_s"), steps.get("tokens_per_s_per_gpu")
    if total and each and each.minimum > 0:
        ratio = total.quantiles(0.5)[0] / each.quantiles(0.5)[0]
        if 1 <= round(ratio) < 2**20 and abs(ratio - round(ratio)) <= _WHOLE * ratio:
            return round(ratio), "tokens per second / tokens per second and GPU"
    ranks = {rank for rank in builder.by_rank if rank is not None}
    is_split = any(values[f"{side}_parallel_size"] for side in ("data", "tensor", "pipeline"))
    if len(ranks) > 1 and ranks == set(range(len(ranks))) and not is_split:
        return len(ranks), "ranks that print steps"
    return None


def segment_of(builder: Builder) -> schema.Segment:
    """Return the segment of a launch; the builder must not be used afterwards."""
    builder.close_steps()
    values, derived = normalise(builder.arguments)
    if values["world_size"] is None and (world := _world(builder, values)) is not None:
        values, more_derived = normalise({**builder.arguments, "world_size": world[0]})
        derived = {**more_derived, "world_size": world[1]}
    batch = builder.steps.by_name.get("global_batch_size")
    if batch is not None:
        batch.flush()
    printed = whole(batch.last) if batch is not None else None
    if values["global_batch_size"] is None and printed is not None:
        values["global_batch_size"] = printed
        derived["global_batch_size"] = "printed with each iteration"
        known = {"world_size": values["world_size"]} if values["world_size"] is not None else {}
        values, more_derived = normalise({**builder.arguments, **known, "global_batch_size": printed})
        derived = {**more_derived, **derived}
    segment = schema.Segment(
        launch=schema.Launch.model_validate({**values, "derived": derived, "arguments": builder.arguments}),
        records=builder.records,
        first=_record(builder.first),
        last=_record(builder.last),
        timers_s=builder.timers.statistics(builder.timer_lows),
        validation=builder.validation,
        metrics={**builder.metrics.statistics(), **builder.steps.statistics()},
        figures=builder.figures,
        section=builder.section,
        lines=schema.Lines(first=builder.line, last=builder.last_line),
    )
    _fill_steps(segment, builder)
    headlines.fill(segment, builder)
    _fill_memory(segment, builder)
    segment.end = _end(builder)
    return segment


def _fill_steps(segment: schema.Segment, builder: Builder) -> None:
    if not builder.records:
        return
    first, last = builder.first, builder.last
    warm = [first.iteration] if builder.records > 1 and first is not None and first.iteration is not None else []
    # Where each round of a bar counts its own steps, the planned ones are those of a round.
    if builder.total and last is not None and (last.iteration or 0) >= 2 * builder.total:
        builder.total = None
    segment.steps = schema.Steps(
        count=builder.records,
        first=first.iteration if first else None,
        last=last.iteration if last else None,
        total=builder.total or _planned(builder),
        left_out=warm,
        why="first record of the launch is warm-up" if warm else None,
    )
    cumulative = builder.skipped_total
    skipped = builder.skipped if cumulative is None else cumulative
    segment.skipped_iterations = None if skipped is None else whole(skipped)
    _fill_loss(segment, builder)


def _planned(builder: Builder) -> int | None:
    """Return the planned steps that settings state, unless more were made."""
    planned, last = first_whole(builder.arguments, *_PLANNED), builder.last
    return planned if planned and last is not None and (last.iteration or 0) <= planned else None


_PLANNED = ("max_steps", "total_steps", "train_steps", "train_iters", "num_iterations", "max_iters")


def _fill_loss(segment: schema.Segment, builder: Builder) -> None:
    names = [name for name in segment.metrics if name.endswith("loss") or name in _LOSSES]
    # Of several losses, one that steps state goes before one of other work.
    own = [name for name in names if name in builder.steps.by_name] or names
    losses = [name for name in own if name in _LOSSES] or own
    if losses:
        name = min(losses, key=lambda n: _LOSSES.index(n) if n in _LOSSES else len(_LOSSES) + bool(_TERM.search(n)))
        loss = segment.metrics[name]
        segment.loss = schema.Loss(name=name, first=loss.first, last=loss.last, min=loss.min)


def _fill_memory(segment: schema.Segment, builder: Builder) -> None:
    last = segment.steps.last if segment.steps else None
    if builder.memory.by_name:
        at = builder.memory_until
        until = at if at is not None and last is not None and at < last else None
        ranks = len(builder.memory_ranks - {None}) or 1
        segment.memory = schema.Memory(ranks=ranks, figures=builder.memory.statistics(), until=until)
    candidates = {**(segment.memory.figures if segment.memory else {}), **segment.metrics}
    for name in (
        "max_allocated_bytes",
        "max_memory_allocated_bytes",
        "peak_bytes",
        "memory_peak_bytes",
        "max_active_bytes",
        "memory_bytes",
        "gpu_mem_bytes",
        "max_reserved_bytes",
        "hip_mem_usage_bytes",
    ):
        if name in candidates:
            segment.gpu_mem_max_bytes = candidates[name].max
            until = segment.memory.until if segment.memory and name in segment.memory.figures else None
            early = "" if until is None else f", printed last after iteration {until} of {last}"
            segment.basis["gpu_mem_max_bytes"] = f"largest {name} of all ranks and records{early}"
            break
    fill_from_figures(segment)
    if segment.gpu_util_pct is None and "gpu_util_pct" in segment.metrics:
        segment.gpu_util_pct = segment.metrics["gpu_util_pct"].mean
        segment.basis["gpu_util_pct"] = "mean of all records"


def fill_from_figures(segment: schema.Segment) -> None:
    figure = segment.figures.get("gpu_mem_bytes")
    if figure is not None and figure.value is not None:
        segment.gpu_mem_max_bytes = figure.value
        segment.basis["gpu_mem_max_bytes"] = f"stated in the document: {figure.text}"
    utilisation = segment.figures.get("gpu_util_pct")
    if utilisation is not None:
        segment.gpu_util_pct = utilisation.value
        segment.basis["gpu_util_pct"] = f"stated in the document: {utilisation.text}"


def _end(builder: Builder) -> schema.End:
    if builder.end is not None:
        return schema.End(state=builder.end.state, reason=builder.end.reason)
    last = builder.last
    if builder.total and last is not None and last.iteration is not None and last.iteration >= builder.total:
        return schema.End(state="finished", reason=f"iteration {last.iteration} of {builder.total} was printed")
    return schema.End()
