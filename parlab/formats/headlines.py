"""Headlines of a launch: step time, samples/s, tokens/s and TFLOP/s, each only from what means it.

`basis` says how a headline was computed, and `kinds` how its numbers came about where steps do not print them: derived
from others, smoothed by a bar, an average since the start, or a part of the step. The first record of a launch is
warm-up, which rates exclude.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from parlab.formats import derivations, schema
from parlab.formats.builder import Builder
from parlab.formats.completion import AMBIGUOUS
from parlab.formats.grammar.units import unix_time
from parlab.formats.statistics import Stream

_PRINTED_MEAN = "mean of the printed values, without the first record"
_PRINTED_OVERALL = "printed in the log for the whole launch"
_AVERAGE = "the last average since the start that the log prints; it prints no value of each step"
_AVERAGED = "the printed times fall as an average since the start does: their growth over the last half of the steps"
_ENOUGH = 3
# A rate of the whole launch that a log prints goes before the derived one that it agrees with.
_AGREES = 0.02
# DeepSpeed's wall clock of a step: these three timers follow one another.
_WALL_CLOCKS = (("forward", "backward", "step"), ("fwd", "bwd", "step"))
# Times of a part of a step by their names.
_PHASE = re.compile(
    r"data|load|read|fetch|fwd|forward|bwd|backward|comm|sync|reduce|optim|eval|valid|sav|gen|compil|build"
)
# Between time stamps of whole seconds, and of parts of seconds, for an error of at most a tenth.
_LEAST_ELAPSED_S, _LEAST_ELAPSED_PARTS_S = 10.0, 0.1


_HOW = {"smoothed": "; progress bars print smoothed times",
        "derived": "; from a printed clock, or times of several steps"}  # fmt: skip
_OF_RECORDS = "records; mean_without_first excludes the first as warm-up"


def is_of_steps(segment: schema.Segment) -> bool:
    """Return whether the step time is that of the series of step times."""
    return _OF_RECORDS in segment.basis.get("step_time_s", "")


def fill(segment: schema.Segment, builder: Builder) -> None:
    """Set the headlines of a segment whose settings and statistics are known."""
    for step_time in _STEP_TIMES:
        if step_time(segment, builder):
            break
    _samples_per_s(segment, builder)
    _tokens_per_s(segment, builder)
    _tflops_per_gpu(segment, builder)
    if segment.step_time_s is None:
        _of_tokens(segment) or _of_stamps(segment, builder)
    derivations.global_batch(segment, builder)
    if derivations.gpus(segment, builder) and segment.tokens_per_s is None:
        _tokens_per_s(segment, builder)


def _set(segment: schema.Segment, name: str, basis: str, kind: schema.Kind = "printed") -> None:
    segment.basis[name] = basis
    if kind != "printed":
        segment.kinds[name] = kind


def _of(stream: Stream, kind: schema.Kind = "printed") -> schema.StepTime:
    p10, median, p90 = stream.quantiles(0.1, 0.5, 0.9)
    if stream.count == 2 and kind == "printed":
        median = stream.last  # the first one is warm-up
    return schema.StepTime(
        median=median, mean=stream.mean, mean_without_first=stream.mean_without_first, p10=p10, p90=p90
    )


def _constant(seconds: float) -> schema.StepTime:
    return schema.StepTime(median=seconds, mean=seconds, p10=seconds, p90=seconds)


def _of_steps(segment: schema.Segment, builder: Builder) -> bool:
    """Take the step times that the steps print, or that follow from their clocks or bars."""
    times = builder.steps.by_name.get("step_time_s")
    if times is None:
        return False
    kind = builder.steps.kinds.get("step_time_s", "printed")
    rates = builder.steps.by_name.get("steps_per_s")
    if kind in ("derived", "smoothed") and rates is not None and 0.5 < rates.mean * times.mean < 2.0:
        return False  # a printed rate goes before a bar and differences of a clock, unless they contradict it
    if kind == "printed" and (recent := derivations.recent_of_average(builder, times)) is not None:
        segment.step_time_s = _constant(recent)
        segment.metrics["step_time_s"].kind = "average"
        _set(segment, "step_time_s", _AVERAGED, "derived")
        return True
    segment.step_time_s = _of(times, kind)
    sampled = "" if times.count <= times.limit else f"; quantiles from a sample of {times.limit}"
    basis = f"{times.count} {_OF_RECORDS}{sampled}{_HOW.get(kind, '')}"
    _set(segment, "step_time_s", basis, kind)
    return True


def _of_rates(segment: schema.Segment, builder: Builder) -> bool:
    # Hugging Face rounds the rate of a whole training to a thousandth.
    is_block = not builder.records and "train_runtime_s" not in builder.metrics.by_name
    rates = (builder.metrics if is_block else builder.steps).by_name.get("steps_per_s")
    if rates is None or rates.minimum <= 0:
        return False
    p10, median, p90 = (1.0 / rate for rate in rates.quantiles(0.9, 0.5, 0.1))
    segment.step_time_s = schema.StepTime(median=median, mean=1.0 / rates.mean, p10=p10, p90=p90)
    _set(segment, "step_time_s", f"1 / printed steps per second, {rates.count} records", "derived")
    return True


def _of_launch(segment: schema.Segment, builder: Builder) -> bool:
    overall = builder.metrics.by_name.get("step_time_s")
    if overall is None:
        return False
    segment.step_time_s = _of(overall).model_copy(update={"mean_without_first": None})
    _set(segment, "step_time_s", _PRINTED_OVERALL, builder.metrics.kinds.get("step_time_s", "printed"))
    return True


def _of_only_time(segment: schema.Segment, builder: Builder) -> bool:
    timers, first, last = builder.timers.by_name, builder.first, builder.last
    if first is not None and last is not None and (last.iteration or 0) - (first.iteration or 0) == builder.records - 1:
        # What clocks of the training are called in most logs, in lines of every step.
        timers = timers | {name: stream for name, stream in builder.steps.by_name.items() if name in AMBIGUOUS}
    named = next(iter(timers), "") if len(timers) == 1 and builder.records else ""
    alone = timers.get("time") or (timers[named] if named and _PHASE.search(named) is None else None)
    # A clock of the whole run only grows; the time of other work is not that of every step.
    if (
        alone is None
        or alone.count < builder.records
        or alone.count < _ENOUGH
        or (alone.first <= alone.minimum and alone.last >= alone.maximum)
    ):
        return False
    segment.step_time_s = _of(alone)
    _set(segment, "step_time_s", f"the only time that each step prints; {alone.count} records")
    return True


def _of_averages(segment: schema.Segment, builder: Builder) -> bool:
    """Take the last average where there is nothing else, marked as such."""
    for streams in (builder.steps, builder.metrics):
        for name, is_rate in (("average_step_time_s", False), ("average_steps_per_s", True)):
            average = streams.by_name.get(name)
            if average is not None and average.minimum > 0:
                segment.step_time_s = _constant(1.0 / average.last if is_rate else average.last)
                _set(segment, "step_time_s", _AVERAGE, "average")
                return True
    return False


def _of_parts(segment: schema.Segment, builder: Builder) -> bool:
    """Add up the timers of the engine where no step has a time: a part of the step, marked as such."""
    timers = builder.timers.by_name
    names = next((names for names in _WALL_CLOCKS if all(name in timers for name in names)), None)
    if names is None:
        return False
    streams = [timers[name] for name in names]
    p10, median, p90 = (sum(parts) for parts in zip(*(s.quantiles(0.1, 0.5, 0.9) for s in streams), strict=True))
    segment.step_time_s = schema.StepTime(median=median, mean=sum(s.mean for s in streams), p10=p10, p90=p90)
    _set(segment, "step_time_s", f"sum of the timers {', '.join(names)}; {streams[0].count} records", "part")
    return True


_STEP_TIMES: tuple[Callable[[schema.Segment, Builder], bool], ...] = (
    _of_steps, _of_rates, _of_launch, _of_averages, _of_only_time, _of_parts,
)  # fmt: skip


def _of_tokens(segment: schema.Segment) -> bool:
    """Derive the step time from the tokens of a step and their rate."""
    launch = segment.launch
    tokens = (launch.global_batch_size or 0) * (launch.sequence_length or 0)
    if not tokens or not segment.tokens_per_s:
        return False
    segment.step_time_s = _constant(tokens / segment.tokens_per_s)
    _set(segment, "step_time_s", "global batch size * sequence length / tokens per second", "derived")
    return True


def _of_stamps(segment: schema.Segment, builder: Builder) -> bool:
    """Derive the step time from the time stamps of the first and the last step, evaluations included."""
    first, last = builder.first, builder.last
    if first is None or last is None or first.iteration is None or last.iteration is None:
        return False
    began, ended = unix_time(first.time or ""), unix_time(last.time or "")
    steps = last.iteration - first.iteration
    if began is None or ended is None or steps < 1 or first.rank != last.rank:
        return False
    is_whole = began.is_integer() and ended.is_integer()
    if ended - began < (_LEAST_ELAPSED_S if is_whole else _LEAST_ELAPSED_PARTS_S):
        return False
    segment.step_time_s = _constant((ended - began) / steps)
    between = f"time stamps of {first.iteration} and {last.iteration}, over {steps} step{'' if steps == 1 else 's'}"
    _set(segment, "step_time_s", between, "derived")
    return True


def _whole_step(segment: schema.Segment) -> schema.StepTime | None:
    """Return the step time, unless it is that of a part."""
    return segment.step_time_s if segment.kinds.get("step_time_s") != "part" else None


def _samples_per_s(segment: schema.Segment, builder: Builder) -> None:
    time = _whole_step(segment)
    seconds = (time.mean_without_first or time.mean) if time else None
    batch = builder.steps.by_name.get("global_batch_size")
    batch_size = _warm_mean(batch) if batch else segment.launch.global_batch_size
    steps, metrics = builder.steps.by_name, builder.metrics.by_name
    printed, overall = steps.get("samples_per_s"), metrics.get("samples_per_s")
    average = steps.get("running_avg_samples_per_s") or steps.get("average_samples_per_s")
    # The Trainer of Hugging Face states the rate of the whole launch; its bars show times that are smoothed.
    is_stated = overall is not None and "train_runtime_s" in metrics
    if seconds and batch_size and not is_stated:
        segment.samples_per_s = batch_size / seconds
        kind = segment.kinds.get("step_time_s", "derived")
        _set(segment, "samples_per_s", "global batch size / step time, without the first record", kind)
    elif printed:
        segment.samples_per_s = _warm_mean(printed)
        _set(segment, "samples_per_s", _PRINTED_MEAN, builder.steps.kinds.get("samples_per_s", "printed"))
    elif overall:
        segment.samples_per_s = overall.mean
        _set(segment, "samples_per_s", _PRINTED_OVERALL)
    elif average:
        segment.samples_per_s = average.last
        _set(segment, "samples_per_s", _AVERAGE, "average")


def _tokens_per_s(segment: schema.Segment, builder: Builder) -> None:
    length, world = segment.launch.sequence_length, segment.launch.world_size
    steps, metrics = builder.steps.by_name, builder.metrics.by_name
    if rate := steps.get("tokens_per_s"):
        segment.tokens_per_s = _warm_mean(rate)
        _set(segment, "tokens_per_s", _PRINTED_MEAN)
    elif segment.samples_per_s and length:
        segment.tokens_per_s = segment.samples_per_s * length
        kind = segment.kinds.get("samples_per_s", "derived")
        _set(segment, "tokens_per_s", "samples per second * sequence length", kind)
        overall = metrics.get("tokens_per_s")
        if overall is not None and abs(overall.mean / segment.tokens_per_s - 1.0) < _AGREES:
            segment.tokens_per_s = overall.mean
            segment.kinds.pop("tokens_per_s", None)
            _set(segment, "tokens_per_s", _PRINTED_OVERALL)
    elif overall := metrics.get("tokens_per_s"):
        segment.tokens_per_s = overall.mean
        _set(segment, "tokens_per_s", _PRINTED_OVERALL)
    elif (each := steps.get("tokens_per_s_per_gpu")) and world:
        segment.tokens_per_s = _warm_mean(each) * world
        basis = "tokens per second and GPU * world size, without the first record"
        _set(segment, "tokens_per_s", basis, "derived")
    elif average := steps.get("average_tokens_per_s") or metrics.get("average_tokens_per_s"):
        segment.tokens_per_s = average.last
        _set(segment, "tokens_per_s", _AVERAGE, "average")
    elif (tokens := derivations.tokens_of_step(segment, builder)) and (time := _whole_step(segment)):
        segment.tokens_per_s = tokens / (time.mean_without_first or time.mean)
        _set(segment, "tokens_per_s", "tokens of a step / step time, without the first record", "derived")


def _tflops_per_gpu(segment: schema.Segment, builder: Builder) -> None:
    for streams in (builder.steps, builder.metrics):
        if flops := streams.by_name.get("flops_per_gpu"):
            segment.tflops_per_gpu = _warm_mean(flops) / 1e12
            return _set(segment, "tflops_per_gpu", _PRINTED_MEAN)
    for streams in (builder.steps, builder.metrics):
        if average := streams.by_name.get("average_flops_per_gpu"):
            segment.tflops_per_gpu = average.last / 1e12
            return _set(segment, "tflops_per_gpu", _AVERAGE, "average")
    return None


def _warm_mean(stream: Stream) -> float:
    """Return the mean without the first record, which is warm-up; with a single record, its value."""
    return stream.mean_without_first or stream.mean
