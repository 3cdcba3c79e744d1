"""Findings: numbers of a document, a run or a sweep that contradict each other. Pure; nothing is corrected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from parlab.findings import clocks, compute, links, rates, records, sizes, sweep_points, tables, timers, totals, work
from parlab.findings.contradictions import Contradiction, RunFacts
from parlab.formats.schema import Document, Finding, Place

__all__ = ["RULES", "Finding", "Place", "Rule", "RunFacts", "document_findings", "run_findings", "sweep_findings"]

Severity = Literal["info", "warning", "error"]
MAX_PER_RULE = 100
"""A file with a million wrong rows is one problem, not a million."""


class Rule(NamedTuple):
    """One kind of contradiction, and the functions that look for it."""

    severity: Severity
    title: str
    """The condition that must hold, as pages display it."""
    documents: tuple[Callable[[Document], Iterable[Contradiction]], ...] = ()
    runs: tuple[Callable[[RunFacts], Iterable[Contradiction]], ...] = ()
    sweeps: tuple[Callable[[Sequence[RunFacts]], Iterable[Contradiction]], ...] = ()


RULES: dict[str, Rule] = {
    "samples-of-iterations": Rule("error", "Samples = iterations x global batch size", (sizes.samples_in_document,)),
    "gpus-of-layout": Rule(
        "error", "GPUs = TP x PP x DP", (sizes.layout_in_document, tables.layouts), (sizes.layout_of_run,)
    ),
    "batch-of-parts": Rule(
        "error",
        "Global batch = micro batch x accumulation x DP",
        (sizes.batch_in_document, tables.batches),
        (sizes.batch_of_run,),
    ),
    "device-map": Rule("error", "A device map contains all stages and shards", (sizes.device_map_in_document,)),
    "time-per-sample": Rule(
        "error",
        "Step time = time per sample x global batch",
        (rates.per_sample_in_document,),
        (rates.per_sample_of_run,),
    ),
    "timers-of-step": Rule(
        "warning", "Top-level timers add up to the step time", (timers.timers_in_document,), (timers.timers_of_run,)
    ),
    "samples-per-second": Rule(
        "error",
        "Samples/s = global batch / step time",
        (rates.samples_per_second_in_document, work.samples_over_seconds, work.samples_of_training),
        (rates.rates_of_run,),
    ),
    "tokens-per-second": Rule(
        "error",
        "Tokens/s = samples/s x sequence length",
        (rates.tokens_per_second_in_document,),
        (rates.tokens_of_run,),
    ),
    "tokens-of-step": Rule("error", "Tokens/s x step time = tokens of a step", (work.tokens_of_step_in_document,)),
    "tokens-seen": Rule("error", "Tokens seen = steps x tokens of a step", (work.tokens_seen_in_document,)),
    "tokens-of-samples": Rule("warning", "A sample has at least one token", (work.tokens_of_samples,)),
    "steps-of-examples": Rule("error", "Planned steps = examples x epochs / batch", (work.steps_in_document,)),
    "throughputs-apart": Rule("warning", "The throughputs of one log agree", (rates.throughputs_in_document,)),
    "flops-of-model": Rule(
        "warning",
        "TFLOP/s x time = FLOPs of the model",
        (compute.model_work_in_document,),
        (compute.model_work_of_run,),
    ),
    "flops-times-time": Rule("warning", "TFLOP/s x time is constant", (compute.constant_work_in_document, tables.work)),
    "above-peak": Rule(
        "error", "A utilization is at most 100 %", (compute.peak_in_document, tables.shares), (compute.peak_of_run,)
    ),
    "above-any-device": Rule(
        "error",
        "FLOP/s per GPU are at most those of the fastest device",
        (compute.fastest_in_document,),
        (compute.fastest_of_run,),
    ),
    "aggregate": Rule("error", "Aggregate = GPUs x figure per GPU", (compute.totals_in_document, tables.aggregates)),
    "off-neighbours": Rule(
        "warning",
        "A throughput lies between those of its neighbours",
        (sweep_points.off_in_document, tables.off_neighbours),
        sweeps=(sweep_points.off_in_sweep,),
    ),
    "efficiency-above-one": Rule(
        "warning",
        "Scaling efficiency is at most 100 %",
        (sweep_points.efficiency_in_document, tables.above_smallest, tables.efficiencies),
        sweeps=(sweep_points.efficiency_in_sweep,),
    ),
    "hidden-setting": Rule(
        "warning",
        "Compared results do the same work",
        (sweep_points.hidden_in_document,),
        sweeps=(sweep_points.hidden_in_sweep,),
    ),
    "improvement": Rule("error", "A stated improvement = ratio of its numbers", (totals.improvements_in_document,)),
    "best-row": Rule("error", "The stated best row has the best value", (totals.best_in_document,)),
    "total-of-rows": Rule("error", "A stated total = sum of its rows", (totals.totals_in_document,)),
    "tuner-metric": Rule(
        "info", "The autotuner's metric is close to the end-to-end throughput", (totals.tuner_in_document,)
    ),
    "placeholder": Rule(
        "warning",
        "Placeholders are not values",
        (records.placeholders_in_document,),
        (records.placeholders_of_run,),
    ),
    "gradients": Rule("warning", "Gradients are neither 0 nor explode", (work.gradients_in_document,)),
    "rate-of-tokens": Rule("error", "Tokens/s are what clusters can reach", (work.rates_in_document,)),
    "loss-zero": Rule("warning", "A loss does not become 0", (work.losses_in_document,)),
    "loss-scale": Rule("warning", "The loss scale does not collapse", (work.scales_in_document,)),
    "clock-of-steps": Rule("warning", "Step times agree with time stamps", (clocks.steps, clocks.bars)),
    "average-as-time": Rule("info", "Step times are no averages since the start", (clocks.averages,)),
    "first-record": Rule("warning", "The first step takes no less than the others", (clocks.first_records,)),
    "remaining-time": Rule("warning", "A remaining time is not negative", (clocks.remaining,)),
    "tokens-of-seconds": Rule("error", "Tokens/s = tokens / seconds", (clocks.tokens,)),
    "slows": Rule("warning", "Steps do not take longer and longer", runs=(work.slows,)),
    "again": Rule("info", "Launches do not overlap", (records.again,)),
    "link-off-setting": Rule("warning", "A measured link matches its configuration", runs=(links.links_of_run,)),
    "loss-after-reload": Rule(
        "warning", "After a reload the loss of a step is what it was before", runs=(records.loss_after_reload,)
    ),
    "cut-short": Rule("error", "A finished run has completed all its iterations", runs=(records.cut_short,)),
}


def document_findings(document: Document) -> list[Finding]:
    """Return the contradictions in the document of one file, in the order of RULES.

    Does not change the document, and does not raise for any content of it.
    """
    return [
        finding for id, rule in RULES.items() for find in rule.documents for finding in _named(id, rule, find(document))
    ]


def run_findings(run: RunFacts) -> list[Finding]:
    """Return the contradictions in one stored run."""
    return [finding for id, rule in RULES.items() for find in rule.runs for finding in _named(id, rule, find(run))]


def sweep_findings(runs: Sequence[RunFacts]) -> list[Finding]:
    """Return the contradictions between the runs of one experiment; run_findings returns those within a run."""
    return [finding for id, rule in RULES.items() for find in rule.sweeps for finding in _named(id, rule, find(runs))]


def _named(id: str, rule: Rule, contradictions: Iterable[Contradiction]) -> Iterable[Finding]:
    for contradiction in islice(contradictions, MAX_PER_RULE):
        yield Finding(
            rule=id,
            severity=rule.severity,
            message=contradiction.message,
            # Products of extreme numbers may be infinite, which JSON cannot represent.
            numbers={name: value for name, value in contradiction.numbers.items() if math.isfinite(value)},
            where=contradiction.where,
            lines=list(contradiction.lines),
        )
