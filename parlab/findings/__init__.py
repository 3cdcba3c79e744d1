"""Findings: numbers of a document, a run or a sweep that cannot be true together. Pure; nothing is ever corrected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal, NamedTuple

from parlab.findings import compute, links, neighbours, rates, records, sizes, tables, timers, totals
from parlab.findings.doubts import Doubt, RunFacts
from parlab.formats.schema import Document, Finding, Place

__all__ = ["RULES", "Finding", "Place", "Rule", "RunFacts", "document_findings", "run_findings", "sweep_findings"]

Severity = Literal["info", "warning", "error"]
MAX_PER_RULE = 100
"""A file of a million wrong rows is one problem, not a million."""


class Rule(NamedTuple):
    """One contradiction, and where it is looked for."""

    severity: Severity
    title: str
    """What must agree, for people."""
    documents: tuple[Callable[[Document], Iterable[Doubt]], ...] = ()
    runs: tuple[Callable[[RunFacts], Iterable[Doubt]], ...] = ()
    sweeps: tuple[Callable[[Sequence[RunFacts]], Iterable[Doubt]], ...] = ()


RULES: dict[str, Rule] = {
    "samples-of-iterations": Rule("error", "Samples are iterations x global batch size", (sizes.samples_in_document,)),
    "gpus-of-layout": Rule(
        "error", "GPUs are TP x PP x DP", (sizes.layout_in_document, tables.layouts), (sizes.layout_of_run,)
    ),
    "batch-of-parts": Rule(
        "error",
        "Global batch is micro batch x accumulation x DP",
        (sizes.batch_in_document, tables.batches),
        (sizes.batch_of_run,),
    ),
    "device-map": Rule("error", "A device map has all stages and shards", (sizes.device_map_in_document,)),
    "time-per-sample": Rule(
        "error",
        "Time per sample x global batch is the step time",
        (rates.per_sample_in_document,),
        (rates.per_sample_of_run,),
    ),
    "timers-of-step": Rule(
        "warning", "Top-level timers add up to the step", (timers.timers_in_document,), (timers.timers_of_run,)
    ),
    "samples-per-second": Rule(
        "error",
        "Samples/s are global batch over step time",
        (rates.samples_per_second_in_document,),
        (rates.rates_of_run,),
    ),
    "tokens-per-second": Rule(
        "error",
        "Tokens/s are samples/s x sequence length",
        (rates.tokens_per_second_in_document,),
        (rates.tokens_of_run,),
    ),
    "throughputs-apart": Rule("warning", "One log has one throughput", (rates.throughputs_in_document,)),
    "flops-of-model": Rule(
        "warning",
        "TFLOP/s x time are the FLOPs of the model",
        (compute.model_work_in_document,),
        (compute.model_work_of_run,),
    ),
    "flops-times-time": Rule(
        "warning", "TFLOP/s x time stay the same", (compute.constant_work_in_document, tables.work)
    ),
    "above-peak": Rule(
        "error", "No share of a peak is above 100 %", (compute.peak_in_document, tables.shares), (compute.peak_of_run,)
    ),
    "aggregate": Rule(
        "error", "An aggregate is GPUs x the figure of one", (compute.totals_in_document, tables.aggregates)
    ),
    "off-neighbours": Rule(
        "warning",
        "A throughput lies between its neighbours'",
        (neighbours.off_in_document, tables.off_neighbours),
        sweeps=(neighbours.off_in_sweep,),
    ),
    "efficiency-above-one": Rule(
        "warning",
        "Scaling efficiency is at most 100 %",
        (neighbours.efficiency_in_document, tables.above_smallest, tables.efficiencies),
        sweeps=(neighbours.efficiency_in_sweep,),
    ),
    "hidden-setting": Rule(
        "warning",
        "Results that are compared are of the same work",
        (neighbours.hidden_in_document,),
        sweeps=(neighbours.hidden_in_sweep,),
    ),
    "improvement": Rule(
        "error", "A stated improvement is the ratio of its numbers", (totals.improvements_in_document,)
    ),
    "best-row": Rule("error", "The best row is the best", (totals.best_in_document,)),
    "total-of-rows": Rule("error", "A stated total is the sum of its rows", (totals.totals_in_document,)),
    "tuner-metric": Rule("info", "The tuner's metric is near the end-to-end throughput", (totals.tuner_in_document,)),
    "placeholder": Rule(
        "warning",
        "A placeholder is no value",
        (records.placeholders_in_document,),
        (records.placeholders_of_run,),
    ),
    "again": Rule("info", "Launches follow each other", (records.again,)),
    "link-off-setting": Rule("warning", "A measured link is what it was set to", runs=(links.links_of_run,)),
    "cut-short": Rule("error", "A finished run has done all its iterations", runs=(records.cut_short,)),
}


def document_findings(document: Document) -> list[Finding]:
    """Find contradictions in what the readers made of one file, in the order of RULES. Changes nothing, never raises
    for anything that a document can hold."""
    return [
        finding for id, rule in RULES.items() for find in rule.documents for finding in _named(id, rule, find(document))
    ]


def run_findings(run: RunFacts) -> list[Finding]:
    """Find contradictions in one stored run."""
    return [finding for id, rule in RULES.items() for find in rule.runs for finding in _named(id, rule, find(run))]


def sweep_findings(runs: Sequence[RunFacts]) -> list[Finding]:
    """Find contradictions between the runs of one experiment; those within each run are run_findings' part."""
    return [finding for id, rule in RULES.items() for find in rule.sweeps for finding in _named(id, rule, find(runs))]


def _named(id: str, rule: Rule, doubts: Iterable[Doubt]) -> Iterable[Finding]:
    for doubt in islice(doubts, MAX_PER_RULE):
        yield Finding(
            rule=id,
            severity=rule.severity,
            message=doubt.message,
            # Products of hostile numbers are infinite, which JSON cannot say.
            numbers={name: value for name, value in doubt.numbers.items() if math.isfinite(value)},
            where=doubt.where,
            lines=list(doubt.lines),
        )
