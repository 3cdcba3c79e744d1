"""FLOP/s that must agree with the model and the step time, with each other, with the peak, and with their sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from parlab.findings.contradictions import Amount, Contradiction, RunFacts, agree, looks_like, percent, ratio_of, shown
from parlab.findings.facts import Sizes, figure_amount, number, part, run_sizes, segment_sizes
from parlab.findings.rates import record_amount
from parlab.formats.schema import Document, Segment, Statistic, StepRecord
from parlab.planner.job.hardware import Peak, fastest, peak_of
from parlab.planner.prediction.flops import Shape, executed_flops, model_flops, parameters

FORMULA = 0.10
"""10 % around each variant: tools differ in how they count embeddings, layer norms and masked attention."""

CONSTANT = 0.02
"""TFLOP/s x time is the work of a step, which is constant within a run; times are printed with few digits."""

LEAST_RECORDS = 5
"""With fewer records the median does not exclude a slow start."""

UNKNOWN_VOCABULARY = (0, 262_144)
"""Range if no argument gives the size: none, to the largest vocabulary of known models."""

VARIES = 0.10
"""FLOP/s follow the time: within a run, they vary at most 10 % more than the times do."""

SLOW_START = 1.5
"""A first step that takes so many times the median contains other work."""

_PEAK_NAMES = ("mfu_pct", "hfu_pct", "memory_share_pct", "gpu_util_pct")
# The readers have a utilization as a fraction where the trainer does not print per cent.
_PEAKS_OF_STEPS = (*((name, 1.0) for name in _PEAK_NAMES), ("mfu", 100.0), ("average_mfu", 100.0))


class Work(NamedTuple):
    """FLOPs of an iteration by one formula; a range if the vocabulary size is unknown."""

    name: str
    low: float
    high: float


def variants(sizes: Sizes) -> list[Work]:
    """Return the FLOPs of an iteration by each known formula; empty if sizes are missing or it is not covered."""
    if not (sizes.layers and sizes.hidden and sizes.sequence and sizes.global_batch and sizes.is_plain):
        return []
    vocabularies = (sizes.vocabulary, sizes.vocabulary) if sizes.vocabulary else UNKNOWN_VOCABULARY
    low, high = (Shape(sizes.layers, sizes.hidden, sizes.sequence, vocabulary) for vocabulary in vocabularies)
    batch = float(sizes.global_batch)
    tokens = batch * sizes.sequence
    return [
        Work("no recompute", model_flops(low, batch), model_flops(high, batch)),
        Work("selective recompute", executed_flops(low, batch, "selective"), executed_flops(high, batch, "selective")),
        Work("causal attention", _half_attention(low, batch), _half_attention(high, batch)),
        Work("full recompute", executed_flops(low, batch, "full"), executed_flops(high, batch, "full")),
        Work("6 x parameters x tokens", 6 * parameters(low) * tokens, 6 * parameters(high) * tokens),
        Work("8 x parameters x tokens", 8 * parameters(low) * tokens, 8 * parameters(high) * tokens),
    ]


def _half_attention(shape: Shape, batch: float) -> float:
    """Return the model FLOPs without the masked half of causal attention, as some tools count them."""
    layers, hidden, sequence, _ = shape
    return model_flops(shape, batch) - 6 * batch * sequence**2 * layers * hidden


def model_work(flops_per_gpu: Amount, step_s: Amount, sizes: Sizes) -> Contradiction | None:
    """Compare FLOP/s x time x GPUs with the FLOPs that the model needs by any of the formulas."""
    works = variants(sizes)
    done = flops_per_gpu.times(step_s).scaled(float(sizes.gpus or 0))
    if not works or done.value <= 0:
        return None
    for work in works:
        if work.low * (1 - FORMULA) <= done.value + done.slack and done.value - done.slack <= work.high * (1 + FORMULA):
            return None
    near = min(works, key=lambda work: min(ratio_of(done.value, work.low), ratio_of(done.value, work.high)))
    bound = near.low if done.value < near.low else near.high
    expected = bound / (step_s.value * (sizes.gpus or 1))
    return Contradiction(
        f"{shown(flops_per_gpu.value / 1e12)} TFLOP/s per GPU x {shown(sizes.gpus or 0)} GPUs x {shown(step_s.value)} s"
        f" = {shown(done.value / 1e15)} PFLOP per step, but the model needs {shown(bound / 1e15)} PFLOP"
        f" ({near.name}, the closest formula), which would be {shown(expected / 1e12)} TFLOP/s per GPU"
        f"{looks_like(ratio_of(done.value, bound), sizes.counts)}.",
        {"tflops_per_gpu": flops_per_gpu.value / 1e12, "step_time_s": step_s.value, "flops_per_step": done.value,
         "expected_flops_per_step": bound},
    )  # fmt: skip


def constant_work(usual: tuple[Amount, Amount], last: tuple[Amount, Amount]) -> Contradiction | None:
    """Compare FLOP/s x time of the last record with that of the medians; each is (FLOP/s per GPU, seconds)."""
    before, after = usual[0].times(usual[1]), last[0].times(last[1])
    if before.value <= 0 or after.value <= 0 or agree(before, after, CONSTANT):
        return None
    return Contradiction(
        f"The medians of the run, {shown(usual[0].value / 1e12)} TFLOP/s x {shown(usual[1].value)} s, give"
        f" {shown(before.value / 1e12)} TFLOP per step and GPU, but the last record,"
        f" {shown(last[0].value / 1e12)} TFLOP/s x {shown(last[1].value)} s, gives {shown(after.value / 1e12)} TFLOP.",
        {"usual_flops_per_gpu_and_step": before.value, "last_flops_per_gpu_and_step": after.value},
    )


def above_peak(share_pct: Amount, name: str) -> Contradiction | None:
    """Check that a utilization is at most 100 %."""
    if share_pct.value - share_pct.slack <= 100:
        return None
    return Contradiction(
        f"{name} of {shown(share_pct.value)} % is more than 100 %: the peak or the formula behind it is wrong, or the"
        " measured time omits part of the work.",
        {"stated_pct": share_pct.value, "largest_possible_pct": 100.0},
    )


def varying_work(flops: Statistic, step: Statistic) -> Contradiction | None:
    """Compare how much FLOP/s and step times vary: their product is constant, so FLOP/s vary as the times do."""
    is_slow_start = step.first > SLOW_START * step.median
    if is_slow_start or min(flops.min, step.min) <= 0 or flops.max / flops.min <= (1 + VARIES) * step.max / step.min:
        return None
    return Contradiction(
        f"{shown(flops.min / 1e12)} and {shown(flops.max / 1e12)} TFLOP/s are printed for steps of {shown(step.min)} to"
        f" {shown(step.max)} s of the same work: the FLOP/s do not follow the time.",
        {"least_tflops": flops.min / 1e12, "most_tflops": flops.max / 1e12, "least_step_time_s": step.min,
         "most_step_time_s": step.max},
    )  # fmt: skip


def above_any_device(flops_per_gpu: float, name: str) -> Contradiction | None:
    """Check FLOP/s per GPU against the fastest device of the catalogue, in its fastest precision of training."""
    if flops_per_gpu <= _FASTEST.flops_per_s:
        return None
    return Contradiction(
        f"{shown(flops_per_gpu / 1e12)} TFLOP/s per GPU ({name}) are more than the {shown(_FASTEST.flops_per_s / 1e12)}"
        f" TFLOP/s of the fastest device ({_FASTEST.source}): a unit, a formula or the number of GPUs is wrong.",
        {"tflops_per_gpu": flops_per_gpu / 1e12, "peak_tflops": _FASTEST.flops_per_s / 1e12},
    )


_FASTEST = fastest("fp8")


def fastest_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        for name in ("flops_per_gpu", "hardware_flops_per_gpu", "average_flops_per_gpu"):
            metric = segment.metrics.get(name)
            if metric is not None and (contradiction := above_any_device(metric.median, "median of the steps")):
                line = segment.last.line if segment.last is not None else None
                yield contradiction.at(line, segment=index, figure="tflops_per_gpu")
                break


def fastest_of_run(run: RunFacts) -> Iterator[Contradiction]:
    tflops = number(run.summary.get("tflops_per_gpu"))
    if tflops is not None and (contradiction := above_any_device(tflops * 1e12, "of the run")):
        yield contradiction.at(run=run.number, figure="tflops_per_gpu")


def above_device(flops_per_gpu: float, peak: Peak, device: str) -> Contradiction | None:
    """Check the FLOP/s per GPU that a run needs against the peak of its device."""
    if flops_per_gpu <= peak.flops_per_s:
        return None
    return Contradiction(
        f"At this step time the model needs at least {shown(flops_per_gpu / 1e12)} TFLOP/s per GPU,"
        f" {percent(flops_per_gpu / peak.flops_per_s)} of the {shown(peak.flops_per_s / 1e12)} TFLOP/s peak of"
        f" {device} ({peak.source}).",
        {"tflops_per_gpu": flops_per_gpu / 1e12, "peak_tflops": peak.flops_per_s / 1e12},
    )


def total(stated: Amount, gpus: float, per_gpu: Amount, unit: str) -> Contradiction | None:
    """Compare an aggregate with GPUs x the figure of one GPU, in the same unit."""
    expected = per_gpu.scaled(gpus)
    if expected.value <= 0 or agree(stated, expected):
        return None
    return Contradiction(
        f"{shown(stated.value)} {unit} are stated for all GPUs, but {shown(gpus)} GPUs x {shown(per_gpu.value)} {unit}"
        f" = {shown(expected.value)} {unit}{looks_like(ratio_of(stated.value, expected.value))}.",
        {"aggregate": stated.value, "gpus": gpus, "per_gpu": per_gpu.value, "expected_aggregate": expected.value},
    )


def model_work_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        record = segment.last or segment.first
        pair = _work_of(record)
        sizes = segment_sizes(segment)
        if record is None or pair is None:
            continue
        batch = record.values.get("global_batch_size")
        contradiction = model_work(*pair, sizes._replace(global_batch=int(batch)) if batch else sizes)
        if contradiction:
            yield contradiction.at(record.line, segment=index, figure="tflops_per_gpu")


def constant_work_in_document(document: Document) -> Iterator[Contradiction]:
    """Compare all records, and the last record with the medians; growing batches and sequences are other work."""
    for index, segment in enumerate(document.segments):
        flops, step = (segment.metrics.get(name) for name in ("flops_per_gpu", "step_time_s"))
        batches = segment.metrics.get("global_batch_size")
        is_fixed = batches is None or batches.min == batches.max
        if flops is None or step is None or not is_fixed or segment_sizes(segment).is_curriculum:
            continue
        if contradiction := _varying(flops, step) or _unlike_usual(segment, flops, step):
            line = segment.last.line if segment.last else None
            yield contradiction.at(line, segment=index, figure="tflops_per_gpu")


def _varying(flops: Statistic, step: Statistic) -> Contradiction | None:
    """Compare the ranges of figures that each step prints."""
    is_printed = flops.kind == step.kind == "printed" and flops.count == step.count > 1
    return varying_work(flops, step) if is_printed else None


def _unlike_usual(segment: Segment, flops: Statistic, step: Statistic) -> Contradiction | None:
    """Compare the last record with the medians."""
    last = _work_of(segment.last)
    if last is None or min(flops.count, step.count) < LEAST_RECORDS:
        return None
    return constant_work((Amount(flops.median), Amount(step.median)), last)


def _work_of(record: StepRecord | None) -> tuple[Amount, Amount] | None:
    if record is None:
        return None
    flops, step = record_amount(record, "flops_per_gpu"), record_amount(record, "step_time_s")
    return (flops, step) if flops and step and flops.value > 0 and step.value > 0 else None


def peak_in_document(document: Document) -> Iterator[Contradiction]:
    """Check utilizations in the records of logs and in prose."""
    for index, segment in enumerate(document.segments):
        for name, scale in _PEAKS_OF_STEPS:
            metric = segment.metrics.get(name)
            contradiction = above_peak(Amount(metric.max * scale), _title(name)) if metric else None
            if contradiction:
                line = segment.lines.first if segment.lines else None
                yield contradiction.at(line, segment=index, figure=name)
    for name in _PEAK_NAMES:
        for number_of_figure, figure in enumerate(document.figures.get(name, [])):
            if figure.value is not None and (contradiction := above_peak(figure_amount(figure), _title(name))):
                yield contradiction.at(figure.line, figure=name, index=number_of_figure)


_TITLES = {
    "mfu_pct": "An MFU", "mfu": "An MFU", "average_mfu": "An average MFU", "hfu_pct": "An HFU",
    "memory_share_pct": "A memory utilization",
}  # fmt: skip


def _title(name: str) -> str:
    return _TITLES.get(name, "A GPU utilization")


def totals_in_document(document: Document) -> Iterator[Contradiction]:
    """Compare tokens/s of all GPUs with tokens/s per GPU if a log prints both."""
    for index, segment in enumerate(document.segments):
        record, gpus = segment.last, segment.launch.world_size
        if record is None or not gpus or "world_size" in segment.launch.derived:
            continue
        stated, each = record_amount(record, "tokens_per_s"), record_amount(record, "tokens_per_s_per_gpu")
        contradiction = total(stated, gpus, each, "tokens/s") if stated and each else None
        if contradiction:
            yield contradiction.at(record.line, segment=index, figure="tokens_per_s")


def model_work_of_run(run: RunFacts) -> Iterator[Contradiction]:
    tflops, step = number(run.summary.get("tflops_per_gpu")), _step(run)
    # TFLOP/s that were computed from the step time cannot contradict it.
    if tflops and step and "flops_formula" not in run.summary:
        sizes = run_sizes(run)
        contradiction = model_work(Amount(tflops * 1e12), Amount(step), sizes)
        if contradiction:
            yield contradiction.at(run=run.number, figure="tflops_per_gpu")


def above_reference(share: float, name: str, peak: Mapping[str, Any]) -> Contradiction | None:
    """Check a computed MFU or HFU against the peak that it refers to."""
    flops = number(peak.get("flops"))
    if flops is None:
        return None
    largest = _largest_peak(str(peak.get("device", "")), str(peak.get("precision")))
    if share * flops <= max(flops, largest.flops_per_s if largest else 0.0):
        return None
    remedy = (
        "the node was busy when the peak was measured; restart its daemon while the node is idle, then run reingest"
        if peak.get("kind") == "measured"
        else "the peak, the model sizes or the step time are wrong"
    )
    return Contradiction(
        f"{name} of {percent(share)} is more than 100 % of the {peak.get('precision')} peak of"
        f" {shown(flops / 1e12)} TFLOP/s ({peak.get('source')}): {remedy}.",
        {"share_pct": 100 * share, "largest_possible_pct": 100.0, "peak_tflops": flops / 1e12},
    )


def peak_of_run(run: RunFacts) -> Iterator[Contradiction]:
    """Check a stated MFU, and the FLOP/s that follow from time and model, against the peak of the device."""
    for name in ("mfu_pct", "hfu_pct"):
        share_pct = number(run.summary.get(name))
        contradiction = above_peak(Amount(share_pct), _title(name)) if share_pct is not None else None
        if contradiction:
            yield contradiction.at(run=run.number, figure=name)
    reference = part(run.summary, "peak")
    if reference:
        for name in ("mfu", "hfu"):
            share = number(run.summary.get(name))
            contradiction = above_reference(share, _title(f"{name}_pct"), reference) if share is not None else None
            if contradiction:
                yield contradiction.at(run=run.number, figure=name)
                return
        return
    sizes, step = run_sizes(run), _step(run)
    peak = _largest_peak(run.device, sizes.precision)
    works = variants(sizes)
    if peak and works and step and sizes.gpus:
        # The formula with the fewest FLOPs, so that the choice of formula cannot cause a finding.
        least = min(work.low for work in works)
        contradiction = above_device(least / (step * sizes.gpus), peak, run.device or "")
        if contradiction:
            yield contradiction.at(run=run.number, figure="step_time_s")


def _largest_peak(device: str | None, precision: str | None) -> Peak | None:
    """Return the peak of a device; for fp32 also that of TF32, which a user may enable outside the configuration."""
    if not device or not precision:
        return None
    peaks = [peak_of(device, name) for name in ((precision, "tf32") if precision == "fp32" else (precision,))]
    return max((peak for peak in peaks if peak), key=lambda peak: peak.flops_per_s, default=None)


def _step(run: RunFacts) -> float | None:
    times = part(run.summary, "step_time_s")
    step = number(times.get("median")) or number(times.get("mean"))
    return step if step and step > 0 else None
