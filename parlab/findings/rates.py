"""Times and throughputs that must fit together: per sample, per step, per second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from parlab.findings.doubts import (
    Amount,
    Counts,
    Doubt,
    RunFacts,
    agree,
    looks_like,
    printed,
    ratio_of,
    shown,
    times,
)
from parlab.findings.facts import figure_amount, number, part, run_sizes, segment_sizes, stated
from parlab.formats.schema import Document, Segment, StepRecord

SAME = 0.01
"""Tools average over slightly different steps; beyond what digits hide, figures of one run differ by less."""

THROUGHPUTS_APART = 3.0
"""Two throughputs of one log may cover other windows, with and without a slow start; three times is another count."""

# Throughputs of something else than the training step: evaluation, or the engine's part of a step of several models.
_OTHER_STEPS = ("eval", "valid", "test", "predict", "engine", "generat")


def per_sample(ms: Amount, batch: float, step_s: Amount, counts: Counts | None = None) -> Doubt | None:
    """Compare ms per sample x global batch size with the step time."""
    product = ms.scaled(batch / 1e3)
    if product.value <= 0 or step_s.value <= 0 or agree(product, step_s, SAME):
        return None
    return Doubt(
        f"{shown(ms.value)} ms per sample x {shown(batch)} samples are {shown(product.value)} s a step, but the step"
        f" takes {shown(step_s.value)} s{looks_like(ratio_of(product.value, step_s.value), counts)}.",
        {"ms_per_sample": ms.value, "global_batch_size": batch, "step_time_s": step_s.value},
    )


def samples_per_second(told: Amount, batch: float, step_s: Amount, counts: Counts | None = None) -> Doubt | None:
    """Compare samples per second with global batch size over step time."""
    if batch <= 0 or step_s.value <= 0:
        return None
    expected = Amount(batch).over(step_s)
    if agree(told, expected, SAME):
        return None
    return Doubt(
        f"{shown(told.value)} samples/s are stated, but {shown(batch)} samples in {shown(step_s.value)} s are"
        f" {shown(expected.value)} samples/s{looks_like(ratio_of(told.value, expected.value), counts)}.",
        {"samples_per_s": told.value, "global_batch_size": batch, "step_time_s": step_s.value,
         "expected_samples_per_s": expected.value},
    )  # fmt: skip


def less_than_a_sample(told: Amount, step_s: Amount) -> Doubt | None:
    """A step works on one sample at least; where even the batch is unknown, this still shows a wrong unit."""
    product = told.times(step_s)
    if not 0 < product.value + product.slack < 1 - SAME:
        return None
    return Doubt(
        f"{shown(told.value)} samples/s are printed for steps of {shown(step_s.value)} s: {shown(product.value)}"
        " samples a step, less than one; it looks like a throughput in samples/ms or one that was divided by 1,000.",
        {"samples_per_s": told.value, "step_time_s": step_s.value, "samples_per_step": product.value},
    )


def tokens_per_second(told: Amount, samples_per_s: Amount, sequence: int) -> Doubt | None:
    """Compare tokens per second with samples per second x sequence length."""
    expected = samples_per_s.scaled(float(sequence))
    if told.value <= 0 or expected.value <= 0 or agree(told, expected, SAME):
        return None
    clause = looks_like(ratio_of(told.value, expected.value))
    if told.value < expected.value and not clause:
        return None  # padding counts as samples, not as tokens
    return Doubt(
        f"{shown(told.value)} tokens/s are stated, but {shown(samples_per_s.value)} samples/s of {shown(sequence)}"
        f" tokens are {shown(expected.value)} tokens/s{clause}.",
        {"tokens_per_s": told.value, "samples_per_s": samples_per_s.value, "sequence_length": float(sequence)},
    )


def throughputs(by_name: Mapping[str, float]) -> Doubt | None:
    """Compare the throughputs that one log prints under several names."""
    known = {name: value for name, value in by_name.items() if value > 0}
    if len(known) < 2:
        return None
    least, most = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
    ratio = known[most] / known[least]
    if ratio <= THROUGHPUTS_APART:
        return None
    return Doubt(
        f"One log states {shown(known[least])} samples/s ({_words(least)}) and {shown(known[most])} samples/s"
        f" ({_words(most)}), {times(ratio)} as many; find out which one counts all samples of a step.",
        {least: known[least], most: known[most]},
    )


def _words(name: str) -> str:
    return name.removesuffix("_samples_per_s").replace("_", " ") or name


def record_amount(record: StepRecord, name: str) -> Amount | None:
    """Return a value of a record with the precision of its printed digits."""
    value = record.values.get(name)
    if value is None:
        return None
    for cell in record.printed.values():
        if cell.name == name and (amount := printed(cell.value)) is not None and amount.value:
            return Amount(value, amount.slack * abs(value / amount.value))
    return Amount(value)


def per_sample_in_document(document: Document) -> Iterator[Doubt]:
    for index, segment in enumerate(document.segments):
        told, sizes = stated(segment, "ms_per_sample"), segment_sizes(segment)
        step = _stated_step(segment) or _measured_step(segment)
        if told and sizes.global_batch and step:
            doubt = per_sample(figure_amount(told), sizes.global_batch, step, sizes.counts)
            if doubt:
                yield doubt.at(told.line, segment=index, figure="ms_per_sample")


def _stated_step(segment: Segment) -> Amount | None:
    figure = stated(segment, "ms_per_iteration") or stated(segment, "ms_per_step")
    return figure_amount(figure).scaled(1e-3) if figure else None


def _measured_step(segment: Segment) -> Amount | None:
    return Amount(segment.step_time_s.mean) if segment.step_time_s else None


def samples_per_second_in_document(document: Document) -> Iterator[Doubt]:
    """Check the first and the last record of each launch, as printed."""
    for index, segment in enumerate(document.segments):
        sizes = segment_sizes(segment)
        for record in _ends(segment):
            told, step = record_amount(record, "samples_per_s"), record_amount(record, "step_time_s")
            if told is None or step is None:
                continue
            batch = record.values.get("global_batch_size") or sizes.global_batch
            doubt = less_than_a_sample(_as_printed(record, told), step)
            if doubt is None and batch:
                doubt = samples_per_second(told, batch, step, sizes.counts)
            if doubt:
                yield doubt.at(record.line, segment=index, figure="samples_per_s")
                break


def _as_printed(record: StepRecord, told: Amount) -> Amount:
    """A reader that knows a tool's error gives the corrected value; the doubt is about what was printed."""
    for cell in record.printed.values():
        if cell.name == "samples_per_s" and cell.unit in ("", "samples/s") and (amount := printed(cell.value)):
            return amount
    return told


def _ends(segment: Segment) -> list[StepRecord]:
    first, last = segment.first, segment.last
    if first is None or last is None or first.line == last.line:
        return [record for record in (first or last,) if record is not None]
    return [first, last]


def tokens_per_second_in_document(document: Document) -> Iterator[Doubt]:
    for index, segment in enumerate(document.segments):
        sequence = segment.launch.sequence_length
        for record in _ends(segment):
            told, samples = record_amount(record, "tokens_per_s"), record_amount(record, "samples_per_s")
            if told and samples and sequence and (doubt := tokens_per_second(told, samples, sequence)):
                yield doubt.at(record.line, segment=index, figure="tokens_per_s")
                break


def throughputs_in_document(document: Document) -> Iterator[Doubt]:
    for index, segment in enumerate(document.segments):
        known = {
            name: metric.median
            for name, metric in segment.metrics.items()
            if name.endswith("samples_per_s") and not name.startswith(_OTHER_STEPS) and metric.count > 1
        }
        doubt = throughputs(known)
        if doubt:
            lines = segment.lines
            yield doubt.at(lines.first if lines else None, segment=index, figure="samples_per_s")


def rates_of_run(run: RunFacts) -> Iterator[Doubt]:
    """Check samples/s of a summary against its step time and batch."""
    sizes, step = run_sizes(run), run_step(run)
    told = number(run.summary.get("samples_per_s"))
    if step and told is not None and sizes.global_batch and not sizes.is_ramped:
        doubt = samples_per_second(Amount(told), sizes.global_batch, step, sizes.counts)
        if doubt:
            yield doubt.at(run=run.number, figure="samples_per_s")


def tokens_of_run(run: RunFacts) -> Iterator[Doubt]:
    told, samples = number(run.summary.get("tokens_per_s")), number(run.summary.get("samples_per_s"))
    sequence = run_sizes(run).sequence
    if told is not None and samples is not None and sequence:
        doubt = tokens_per_second(Amount(told), Amount(samples), sequence)
        if doubt:
            yield doubt.at(run=run.number, figure="tokens_per_s")


def per_sample_of_run(run: RunFacts) -> Iterator[Doubt]:
    sizes, step = run_sizes(run), run_step(run)
    told = number(run.summary.get("ms_per_sample"))
    if step and told is not None and sizes.global_batch and not sizes.is_ramped:
        doubt = per_sample(Amount(told), sizes.global_batch, step, sizes.counts)
        if doubt:
            yield doubt.at(run=run.number, figure="ms_per_sample")


def run_step(run: RunFacts) -> Amount | None:
    """Return the step time of a run's summary: its median, or else a mean."""
    times = part(run.summary, "step_time_s")
    for name in ("median", "mean", "mean_without_first"):
        if (value := number(times.get(name))) is not None and value > 0:
            return Amount(value)
    return None
