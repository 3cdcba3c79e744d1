"""Times and throughputs that must agree: per sample, per step, per second."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from parlab.findings.contradictions import (
    Amount,
    Contradiction,
    Counts,
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
"""Tools average over slightly different steps; beyond rounding, figures of one run differ by less."""

THROUGHPUTS_APART = 3.0
"""Throughputs of one log may cover different windows, with or without a slow start; a factor of 3 is more."""

# Throughputs of something other than the training step: evaluation, or the engine's part of a multi-model step.
_OTHER_STEPS = ("eval", "valid", "test", "predict", "engine", "generat")


def per_sample(ms: Amount, batch: float, step_s: Amount, counts: Counts | None = None) -> Contradiction | None:
    """Compare ms per sample x global batch size with the step time."""
    product = ms.scaled(batch / 1e3)
    if product.value <= 0 or step_s.value <= 0 or agree(product, step_s, SAME):
        return None
    return Contradiction(
        f"{shown(ms.value)} ms per sample x {shown(batch)} samples = {shown(product.value)} s per step, but the step"
        f" takes {shown(step_s.value)} s{looks_like(ratio_of(product.value, step_s.value), counts)}.",
        {"ms_per_sample": ms.value, "global_batch_size": batch, "step_time_s": step_s.value},
    )


def samples_per_second(
    stated_rate: Amount, batch: float, step_s: Amount, counts: Counts | None = None
) -> Contradiction | None:
    """Compare samples per second with global batch size over step time."""
    if batch <= 0 or step_s.value <= 0:
        return None
    expected = Amount(batch).over(step_s)
    if agree(stated_rate, expected, SAME):
        return None
    return Contradiction(
        f"{shown(stated_rate.value)} samples/s are stated, but {shown(batch)} samples / {shown(step_s.value)} s ="
        f" {shown(expected.value)} samples/s{looks_like(ratio_of(stated_rate.value, expected.value), counts)}.",
        {"samples_per_s": stated_rate.value, "global_batch_size": batch, "step_time_s": step_s.value,
         "expected_samples_per_s": expected.value},
    )  # fmt: skip


def less_than_a_sample(stated_rate: Amount, step_s: Amount) -> Contradiction | None:
    """Check that a step processes at least one sample, which detects a wrong unit even if the batch size is unknown."""
    product = stated_rate.times(step_s)
    if not 0 < product.value + product.slack < 1 - SAME:
        return None
    return Contradiction(
        f"{shown(stated_rate.value)} samples/s are printed for steps of {shown(step_s.value)} s: {shown(product.value)}"
        " samples per step, less than one; the unit may be samples/ms.",
        {"samples_per_s": stated_rate.value, "step_time_s": step_s.value, "samples_per_step": product.value},
    )


def tokens_per_second(stated_rate: Amount, samples_per_s: Amount, sequence: int) -> Contradiction | None:
    """Compare tokens per second with samples per second x sequence length."""
    expected = samples_per_s.scaled(float(sequence))
    if stated_rate.value <= 0 or expected.value <= 0 or agree(stated_rate, expected, SAME):
        return None
    clause = looks_like(ratio_of(stated_rate.value, expected.value))
    if stated_rate.value < expected.value and not clause:
        return None  # padding is part of the samples, but not of the tokens
    return Contradiction(
        f"{shown(stated_rate.value)} tokens/s are stated, but {shown(samples_per_s.value)} samples/s x"
        f" {shown(sequence)} tokens = {shown(expected.value)} tokens/s{clause}.",
        {"tokens_per_s": stated_rate.value, "samples_per_s": samples_per_s.value, "sequence_length": float(sequence)},
    )


_THROUGHPUTS = (
    (re.compile(r"\w{0,80}samples_per_s"), "samples/s", "samples_per_s"),
    (re.compile(r"tokens_per_s(?:ec)?_per_gpu(?:_\w{1,40})?"), "tokens/s per GPU", "tokens_per_s_per_gpu"),
)
"""Names that mean the same throughput, its unit, and the figure that a finding names.

Tokens whose name says which of them count, such as trainable ones, are another quantity.
"""


def throughputs(by_name: Mapping[str, float], unit: str = "samples/s") -> Contradiction | None:
    """Compare the throughputs that one log prints under different names."""
    rates = {name: value for name, value in by_name.items() if value > 0}
    if len(rates) < 2:
        return None
    least, most = min(rates, key=lambda name: rates[name]), max(rates, key=lambda name: rates[name])
    ratio = rates[most] / rates[least]
    if ratio <= THROUGHPUTS_APART:
        return None
    return Contradiction(
        f"The log states {shown(rates[least])} {unit} ({_title(least)}) and {shown(rates[most])} {unit}"
        f" ({_title(most)}), {times(ratio)} as many; check which of them counts all of a step.",
        {least: rates[least], most: rates[most]},
    )


def _title(name: str) -> str:
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


def per_sample_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        figure, sizes = stated(segment, "ms_per_sample"), segment_sizes(segment)
        step = _stated_step(segment) or _measured_step(segment)
        if figure and sizes.global_batch and step:
            contradiction = per_sample(figure_amount(figure), sizes.global_batch, step, sizes.counts)
            if contradiction:
                yield contradiction.at(figure.line, segment=index, figure="ms_per_sample")


def _stated_step(segment: Segment) -> Amount | None:
    figure = stated(segment, "ms_per_iteration") or stated(segment, "ms_per_step")
    return figure_amount(figure).scaled(1e-3) if figure else None


def _measured_step(segment: Segment) -> Amount | None:
    return Amount(segment.step_time_s.mean) if segment.step_time_s else None


def samples_per_second_in_document(document: Document) -> Iterator[Contradiction]:
    """Check the first and the last record of each launch as printed."""
    for index, segment in enumerate(document.segments):
        sizes = segment_sizes(segment)
        for record in _ends(segment):
            rate, step = record_amount(record, "samples_per_s"), record_amount(record, "step_time_s")
            if rate is None or step is None:
                continue
            batch = record.values.get("global_batch_size") or sizes.global_batch
            contradiction = less_than_a_sample(_as_printed(record, rate), step)
            if contradiction is None and batch:
                contradiction = samples_per_second(rate, batch, step, sizes.counts)
            if contradiction:
                yield contradiction.at(record.line, segment=index, figure="samples_per_s")
                break


def _as_printed(record: StepRecord, rate: Amount) -> Amount:
    """Return the printed value: a reader may have corrected a known error of the tool."""
    for cell in record.printed.values():
        if cell.name == "samples_per_s" and cell.unit in ("", "samples/s") and (amount := printed(cell.value)):
            return amount
    return rate


def _ends(segment: Segment) -> list[StepRecord]:
    first, last = segment.first, segment.last
    if first is None or last is None or first.line == last.line:
        return [record for record in (first or last,) if record is not None]
    return [first, last]


def tokens_per_second_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        sequence = segment.launch.sequence_length
        for record in _ends(segment):
            tokens, samples = record_amount(record, "tokens_per_s"), record_amount(record, "samples_per_s")
            if tokens and samples and sequence and (contradiction := tokens_per_second(tokens, samples, sequence)):
                yield contradiction.at(record.line, segment=index, figure="tokens_per_s")
                break


def throughputs_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        for names, unit, figure in _THROUGHPUTS:
            rates = {
                name: metric.median
                for name, metric in segment.metrics.items()
                if names.fullmatch(name) and not name.startswith(_OTHER_STEPS) and metric.count > 1
            }
            if contradiction := throughputs(rates, unit):
                lines = segment.lines
                yield contradiction.at(lines.first if lines else None, segment=index, figure=figure)


def rates_of_run(run: RunFacts) -> Iterator[Contradiction]:
    """Check samples/s of a summary against its step time and global batch size."""
    sizes, step = run_sizes(run), run_step(run)
    rate = number(run.summary.get("samples_per_s"))
    if step and rate is not None and sizes.global_batch and not sizes.is_ramped:
        contradiction = samples_per_second(Amount(rate), sizes.global_batch, step, sizes.counts)
        if contradiction:
            yield contradiction.at(run=run.number, figure="samples_per_s")


def tokens_of_run(run: RunFacts) -> Iterator[Contradiction]:
    tokens, samples = number(run.summary.get("tokens_per_s")), number(run.summary.get("samples_per_s"))
    sequence = run_sizes(run).sequence
    if tokens is not None and samples is not None and sequence:
        contradiction = tokens_per_second(Amount(tokens), Amount(samples), sequence)
        if contradiction:
            yield contradiction.at(run=run.number, figure="tokens_per_s")


def per_sample_of_run(run: RunFacts) -> Iterator[Contradiction]:
    sizes, step = run_sizes(run), run_step(run)
    ms = number(run.summary.get("ms_per_sample"))
    if step and ms is not None and sizes.global_batch and not sizes.is_ramped:
        contradiction = per_sample(Amount(ms), sizes.global_batch, step, sizes.counts)
        if contradiction:
            yield contradiction.at(run=run.number, figure="ms_per_sample")


def run_step(run: RunFacts) -> Amount | None:
    """Return the step time of a run's summary: its median, otherwise a mean."""
    times = part(run.summary, "step_time_s")
    for name in ("median", "mean", "mean_without_first"):
        if (value := number(times.get(name))) is not None and value > 0:
            return Amount(value)
    return None
