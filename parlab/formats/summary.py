"""Summary of a launch's records: the Segment of one Builder.

The first record of a launch is warm-up: `mean_without_first`, samples/s, tokens/s and TFLOP/s exclude it; median, mean,
p10 and p90 include all records.
"""

from __future__ import annotations

from parlab.formats import schema
from parlab.formats.builder import Builder
from parlab.formats.grammar.records import Record
from parlab.formats.launch import normalise
from parlab.formats.statistics import Stream

_PRINTED_MEAN = "mean of the printed values, without the first record"
_PRINTED_OVERALL = "printed in the log for the whole launch"
_LOSSES = ("loss", "lm_loss", "train_loss", "reduced_train_loss")


def _record(record: Record | None) -> schema.StepRecord | None:
    if record is None:
        return None
    printed = {
        cell.key: schema.PrintedCell(value=cell.value, unit=cell.unit, name=cell.name) for cell in record.printed()
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


def segment_of(builder: Builder) -> schema.Segment:
    """Return the segment of a launch; the builder must not be used afterwards."""
    builder.close_steps()
    values, derived = normalise(builder.arguments)
    batch = builder.steps.by_name.get("global_batch_size")
    if batch is not None:
        batch.flush()
    printed = whole(batch.last) if batch is not None else None
    if values["global_batch_size"] is None and printed is not None:
        values["global_batch_size"] = printed
        derived["global_batch_size"] = "printed with each iteration"
        values, more_derived = normalise({**builder.arguments, "global_batch_size": printed})
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
    _fill_wall_clock(segment, builder)
    _fill_rates(segment, builder)
    _fill_memory(segment, builder)
    segment.end = _end(builder)
    return segment


_ENOUGH = 3
# DeepSpeed's wall clock of a step: these three timers follow one another.
_WALL_CLOCKS = (("forward", "backward", "step"), ("fwd", "bwd", "step"))


def _fill_wall_clock(segment: schema.Segment, builder: Builder) -> None:
    """Set a step time that no step states: the one of the launch, or the sum of DeepSpeed's timers."""
    if segment.step_time_s is None and (overall := builder.metrics.by_name.get("step_time_s")):
        p10, median, p90 = overall.quantiles(0.1, 0.5, 0.9)
        segment.step_time_s = schema.StepTime(median=median, mean=overall.mean, p10=p10, p90=p90)
        segment.basis["step_time_s"] = _PRINTED_OVERALL
    timers = builder.timers.by_name
    alone = timers.get("time")
    # A clock of the whole run only grows.
    if (
        segment.step_time_s is None
        and alone
        and alone.count >= _ENOUGH
        and not (alone.first <= alone.minimum and alone.last >= alone.maximum)
    ):
        p10, median, p90 = alone.quantiles(0.1, 0.5, 0.9)
        segment.step_time_s = schema.StepTime(
            median=median, mean=alone.mean, mean_without_first=alone.mean_without_first, p10=p10, p90=p90
        )
        segment.basis["step_time_s"] = f"the only time that each step prints; {alone.count} records"
    names = next((names for names in _WALL_CLOCKS if all(name in timers for name in names)), None)
    if segment.step_time_s is not None or names is None:
        return
    streams = [timers[name] for name in names]
    p10, median, p90 = (sum(parts) for parts in zip(*(s.quantiles(0.1, 0.5, 0.9) for s in streams), strict=True))
    segment.step_time_s = schema.StepTime(median=median, mean=sum(s.mean for s in streams), p10=p10, p90=p90)
    segment.basis["step_time_s"] = f"sum of the timers {', '.join(names)}; {streams[0].count} records"


def _fill_steps(segment: schema.Segment, builder: Builder) -> None:
    if not builder.records:
        return
    first, last = builder.first, builder.last
    warm = [first.iteration] if builder.records > 1 and first is not None and first.iteration is not None else []
    segment.steps = schema.Steps(
        count=builder.records,
        first=first.iteration if first else None,
        last=last.iteration if last else None,
        total=builder.total,
        left_out=warm,
        why="first record of the launch is warm-up" if warm else None,
    )
    cumulative = builder.skipped_total
    skipped = builder.skipped if cumulative is None else cumulative
    segment.skipped_iterations = None if skipped is None else whole(skipped)
    _fill_loss(segment)
    _fill_step_time(segment, builder)


def _fill_loss(segment: schema.Segment) -> None:
    losses = [name for name in segment.metrics if name in _LOSSES] or [n for n in segment.metrics if n.endswith("loss")]
    if losses:
        name = min(losses, key=lambda n: _LOSSES.index(n) if n in _LOSSES else len(_LOSSES))
        loss = segment.metrics[name]
        segment.loss = schema.Loss(name=name, first=loss.first, last=loss.last, min=loss.min)


def _fill_step_time(segment: schema.Segment, builder: Builder) -> None:
    """Set the step time: as printed, else from printed steps per second."""
    times = builder.steps.by_name.get("step_time_s")
    rates = builder.steps.by_name.get("steps_per_s")
    if times is None and rates is not None and rates.minimum > 0:
        p10, median, p90 = (1.0 / rate for rate in rates.quantiles(0.9, 0.5, 0.1))
        segment.step_time_s = schema.StepTime(median=median, mean=1.0 / rates.mean, p10=p10, p90=p90)
        segment.basis["step_time_s"] = f"1 / printed steps per second, {rates.count} records"
    if times is not None:
        p10, median, p90 = times.quantiles(0.1, 0.5, 0.9)
        segment.step_time_s = schema.StepTime(
            median=median, mean=times.mean, mean_without_first=times.mean_without_first, p10=p10, p90=p90
        )
        sampled = "" if times.count <= times.limit else f"; quantiles from a sample of {times.limit}"
        smoothed = "; progress bars print smoothed times" if _is_of_bar(builder.last) else ""
        segment.basis["step_time_s"] = (
            f"{times.count} records; mean_without_first excludes the first as warm-up{sampled}{smoothed}"
        )


def _is_of_bar(record: Record | None) -> bool:
    """Return whether the step time of a record is the rate of a progress bar, a moving average."""
    fields = () if record is None else record.fields
    return any(field.name == "step_time_s" and field.key in ("s/it", "it/s") for field in fields)


def _fill_rates(segment: schema.Segment, builder: Builder) -> None:
    """Set samples/s, tokens/s and TFLOP/s: computed from batch and time if both are printed, else as printed."""
    _fill_samples_per_s(segment, builder)
    _fill_tokens_per_s(segment, builder)
    for streams in (builder.steps, builder.metrics):
        flops = streams.by_name.get("flops_per_gpu")
        if flops and segment.tflops_per_gpu is None:
            segment.tflops_per_gpu = _warm_mean(flops) / 1e12
            segment.basis["tflops_per_gpu"] = _PRINTED_MEAN


def _fill_samples_per_s(segment: schema.Segment, builder: Builder) -> None:
    time = segment.step_time_s
    seconds = (time.mean_without_first or time.mean) if time else None
    batch = builder.steps.by_name.get("global_batch_size")
    batch_size = _warm_mean(batch) if batch else segment.launch.global_batch_size
    printed = builder.steps.by_name.get("samples_per_s") or builder.steps.by_name.get("running_avg_samples_per_s")
    overall = builder.metrics.by_name.get("samples_per_s")
    # The Trainer of Hugging Face states the rate of the whole launch; its bars show times that are smoothed.
    is_stated = overall is not None and "train_runtime_s" in builder.metrics.by_name
    if seconds and batch_size and not is_stated:
        segment.samples_per_s = batch_size / seconds
        segment.basis["samples_per_s"] = "global batch size / step time, without the first record"
    elif printed:
        segment.samples_per_s = _warm_mean(printed)
        segment.basis["samples_per_s"] = _PRINTED_MEAN
    elif overall:
        segment.samples_per_s = overall.mean
        segment.basis["samples_per_s"] = _PRINTED_OVERALL


def _fill_tokens_per_s(segment: schema.Segment, builder: Builder) -> None:
    length = segment.launch.sequence_length
    if tokens := builder.steps.by_name.get("tokens_per_s"):
        segment.tokens_per_s = _warm_mean(tokens)
        segment.basis["tokens_per_s"] = _PRINTED_MEAN
    elif segment.samples_per_s and length:
        segment.tokens_per_s = segment.samples_per_s * length
        segment.basis["tokens_per_s"] = "samples per second * sequence length"
    elif overall := builder.metrics.by_name.get("tokens_per_s"):
        segment.tokens_per_s = overall.mean
        segment.basis["tokens_per_s"] = _PRINTED_OVERALL
    elif (each := builder.steps.by_name.get("tokens_per_s_per_gpu")) and segment.launch.world_size:
        segment.tokens_per_s = _warm_mean(each) * segment.launch.world_size
        segment.basis["tokens_per_s"] = "tokens per second and GPU * world size, without the first record"


def _warm_mean(stream: Stream) -> float:
    """Return the mean without the first record, which is warm-up; with a single record, its value."""
    return stream.mean_without_first or stream.mean


def _fill_memory(segment: schema.Segment, builder: Builder) -> None:
    if builder.memory.by_name:
        segment.memory = schema.Memory(
            ranks=len(builder.memory_ranks - {None}) or 1, figures=builder.memory.statistics()
        )
    candidates = {**(segment.memory.figures if segment.memory else {}), **segment.metrics}
    for name in (
        "max_allocated_bytes",
        "max_memory_allocated_bytes",
        "peak_bytes",
        "max_active_bytes",
        "memory_bytes",
        "gpu_mem_bytes",
        "max_reserved_bytes",
        "hip_mem_usage_bytes",
    ):
        if name in candidates:
            segment.gpu_mem_max_bytes = candidates[name].max
            segment.basis["gpu_mem_max_bytes"] = f"largest {name} of all ranks and records"
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
