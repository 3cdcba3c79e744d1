"""Sizes of a launch that follow from its figures: tokens of a step, samples of a step, GPUs."""

from __future__ import annotations

from parlab.formats import schema
from parlab.formats.builder import Builder
from parlab.formats.grammar.names import first_whole
from parlab.formats.grammar.records import Record
from parlab.formats.statistics import Stream

# As many times, from the first steps on, show whether they are averages: d + c / n within the error, and c > 0.
_TIMES, _ERROR, _SLOW_START = 10, 0.05, 0.3
# Sizes up to the first are any whole number, larger ones a multiple of the second.
_ANY, _MULTIPLE = 32, 8
# A quotient of printed numbers may differ so much from a size, and by no more than a part of the distance of sizes.
_NEAR, _PART = 0.02, 0.25
TOKENS_PER_STEP = ("tokens_per_step", "train_batch_tokens", "batch_tokens", "tokens_per_batch")
"""Names of settings."""


def whole_size(quotient: float) -> int | None:
    """Return the size that a quotient of printed numbers means; None if it is not near to one."""
    if not 0.5 < quotient < 2**40:
        return None
    distance = 1 if quotient < _ANY else _MULTIPLE
    size = round(quotient / distance) * distance
    return size if abs(quotient - size) <= min(_NEAR * quotient, _PART * distance) else None


def tokens_of_step(segment: schema.Segment, builder: Builder) -> float | None:
    """Return the tokens of a step: stated, printed with each step, or by a count of all tokens so far."""
    stated = first_whole(segment.launch.arguments, *TOKENS_PER_STEP)
    if stated:
        return float(stated)
    printed = builder.steps.by_name.get("tokens")
    if printed and printed.minimum == printed.maximum > 0:
        return printed.last
    return _growth(builder, "tokens_seen")


def _growth(builder: Builder, name: str) -> float | None:
    """Return by how much a count grows in a step, from the first to the last record."""
    first, last = builder.first, builder.last
    if first is None or last is None or first.iteration is None or last.iteration is None:
        return None
    before, after, steps = first.values.get(name), last.values.get(name), last.iteration - first.iteration
    return (after - before) / steps if before is not None and after is not None and steps > 0 < after - before else None


def global_batch(segment: schema.Segment, builder: Builder) -> None:
    """Set the samples of a step where the first and the last record give the same number."""
    if segment.launch.global_batch_size is not None or builder.first is None or builder.last is None:
        return
    grown = _growth(builder, "consumed_samples")
    if grown is not None and grown.is_integer():
        _set(segment, "global_batch_size", int(grown), "growth of the consumed samples / iterations")
        return
    for name, how in _BESIDE.items():
        sizes = {_samples(record, name) for record in (builder.first, builder.last)}
        size = sizes.pop()
        if size is not None and not sizes:
            _set(segment, "global_batch_size", size, how)
            return


_BESIDE = {"step_time_s": "samples per second * step time", "steps_per_s": "samples per second / steps per second"}


def _samples(record: Record, name: str) -> int | None:
    """Return the samples of a step by what a record prints: their rate, and the time or the rate of steps."""
    printed = {field.name for field in record.fields if field.kind == "printed"}
    rate, other = (record.values.get(each, 0.0) for each in ("samples_per_s", name))
    if not {"samples_per_s", name} <= printed or rate <= 0.0 or other <= 0.0:
        return None
    return whole_size(rate * other if name == "step_time_s" else rate / other)


def recent_of_average(builder: Builder, times: Stream) -> float | None:
    """Return the time of the later steps if the printed times are averages since the start; None for any others.

    After a slow start, an average over n steps of d seconds is d + c / n; times of steps are not.
    """
    first, last = builder.first, builder.last
    if not _TIMES <= times.count <= times.limit or first is None or last is None or not first.iteration:
        return None
    gap = ((last.iteration or 0) - first.iteration) / (times.count - 1)
    if gap < 1.0 or first.iteration > 2.0 * gap:
        return None
    values = [*times.kept]
    steps = [first.iteration + gap * place for place in range(times.count)]
    shares = [1.0 / step for step in steps]
    mean, mean_share = sum(values) / len(values), sum(shares) / len(shares)
    spread = sum((share - mean_share) ** 2 for share in shares)
    slope = sum((share - mean_share) * value for share, value in zip(shares, values, strict=True)) / spread
    level = mean - slope * mean_share
    errors = [value - level - slope * share for share, value in zip(shares, values, strict=True)]
    if level <= 0.0 or slope * shares[0] < _SLOW_START * level or max(map(abs, errors)) > _ERROR * level:
        return None
    half = times.count // 2
    return (steps[-1] * values[-1] - steps[half] * values[half]) / (steps[-1] - steps[half])


def gpus(segment: schema.Segment, builder: Builder) -> bool:
    """Set the number of GPUs by the tokens of a step, its time and the tokens per second of a GPU."""
    each, time, launch = builder.steps.by_name.get("tokens_per_s_per_gpu"), segment.step_time_s, segment.launch
    if launch.world_size is not None or time is None or segment.kinds.get("step_time_s") == "part" or not each:
        return False
    tokens = tokens_of_step(segment, builder) or (launch.global_batch_size or 0) * (launch.sequence_length or 0)
    rate = each.quantiles(0.5)[0]
    size = whole_size(tokens / time.median / rate) if tokens and rate > 0 else None
    if size is not None:
        _set(segment, "world_size", size, "tokens of a step / step time / tokens per second and GPU")
    return size is not None


def _set(segment: schema.Segment, name: str, size: int, how: str) -> None:
    setattr(segment.launch, name, size)
    segment.launch.derived[name] = how
