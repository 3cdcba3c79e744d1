"""Counts and their products: layouts, batches, samples, device maps. Counts are exact, so there is no tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from parlab.findings.contradictions import Amount, Contradiction, Counts, RunFacts, agree, looks_like, ratio_of, shown
from parlab.findings.facts import Sizes, count, run_sizes, segment_sizes, stated
from parlab.formats.schema import Document, Segment


def samples(
    stated_samples: float, iterations: float, batch: float, counts: Counts | None = None
) -> Contradiction | None:
    """Compare stated samples with iterations x global batch size."""
    expected = iterations * batch
    if expected <= 0 or agree(Amount(stated_samples), Amount(expected)):
        return None
    return Contradiction(
        f"{shown(stated_samples)} samples are stated, but {shown(iterations)} iterations x {shown(batch)} samples ="
        f" {shown(expected)}{looks_like(ratio_of(stated_samples, expected), counts)}.",
        {"samples": stated_samples, "iterations": iterations, "global_batch_size": batch, "expected_samples": expected},
    )


def layout(sizes: Sizes) -> Contradiction | None:
    """Compare GPUs with TP x PP x DP (x context parallel)."""
    factors = {"TP": sizes.tensor, "PP": sizes.pipeline, "DP": sizes.data}
    if (sizes.context or 1) > 1:
        factors["CP"] = sizes.context
    product = math.prod(factor or 0 for factor in factors.values())
    if not sizes.gpus or not product or product == sizes.gpus:
        return None
    product_text = " x ".join(f"{name} {factor}" for name, factor in factors.items())
    return Contradiction(
        f"{shown(sizes.gpus)} GPUs are stated, but {product_text} = {shown(product)}.",
        {"gpus": float(sizes.gpus), "expected_gpus": float(product)},
    )


def batch(sizes: Sizes) -> Contradiction | None:
    """Compare the global batch size with micro batch x accumulation x DP.

    Without accumulation, check that micro batch x DP divides it.
    """
    if not sizes.global_batch or not sizes.micro_batch or not sizes.data or sizes.is_ramped:
        return None
    share = sizes.micro_batch * sizes.data
    numbers = {
        "global_batch_size": float(sizes.global_batch),
        "micro_batch_size": float(sizes.micro_batch),
        "data_parallel_size": float(sizes.data),
    }
    stated_text = f"A global batch size of {shown(sizes.global_batch)} is stated, but"
    if sizes.accumulation:
        product = share * sizes.accumulation
        if product == sizes.global_batch:
            return None
        clause = looks_like(ratio_of(product, sizes.global_batch), sizes.counts._replace(gpus=None))
        return Contradiction(
            f"{stated_text} micro batch size {shown(sizes.micro_batch)} x {shown(sizes.accumulation)} accumulation"
            f" steps x DP {shown(sizes.data)} = {shown(product)}{clause}.",
            numbers | {"gradient_accumulation_steps": float(sizes.accumulation), "expected": float(product)},
        )
    if sizes.global_batch % share == 0:
        return None
    return Contradiction(
        f"{stated_text} it is not a multiple of micro batch size {shown(sizes.micro_batch)} x DP {shown(sizes.data)}"
        f" = {shown(share)}.",
        numbers | {"divisor": float(share)},
    )


def device_map(data: Mapping[str, Any]) -> dict[str, Contradiction]:
    """Compare a map of stages and shards to devices with the settings beside it: {setting: contradiction}."""
    contradictions: dict[str, Contradiction] = {}
    mapping = data.get("device_mapping")
    if not isinstance(mapping, Mapping):
        return contradictions
    stages, shards = count(data.get("stage_cnt")), count(data.get("sharding_size"))
    if stages and len(mapping) != stages:
        contradictions["stage_cnt"] = Contradiction(
            f"stage_cnt is {shown(stages)}, but device_mapping contains {len(mapping)} stages.",
            {"stage_cnt": float(stages), "mapped_stages": float(len(mapping))},
        )
    placed = {str(name)[:80]: len(part) for name, part in mapping.items() if isinstance(part, Mapping | list)}
    wrong = {name: shard_count for name, shard_count in placed.items() if shard_count != shards}
    if shards and wrong:
        name, mapped = next(iter(wrong.items()))
        more = len(wrong) - 1
        others = f"; {more} more {'stage differs' if more == 1 else 'stages differ'}" if more else ""
        contradictions["sharding_size"] = Contradiction(
            f"sharding_size is {shown(shards)}, but device_mapping contains {mapped} shards of {name}{others}.",
            {"sharding_size": float(shards), "mapped_shards": float(mapped), "stages_that_differ": float(len(wrong))},
        )
    return contradictions


def samples_in_document(document: Document) -> Iterator[Contradiction]:
    """Check the samples that prose states, and those that a log counts from its first to its last record."""
    for index, segment in enumerate(document.segments):
        sizes = segment_sizes(segment)
        figure, iterations = stated(segment, "measured_samples"), stated(segment, "measured_iterations")
        if figure and iterations and sizes.global_batch:
            contradiction = samples(figure.value or 0.0, iterations.value or 0.0, sizes.global_batch, sizes.counts)
            if contradiction:
                yield contradiction.at(figure.line, segment=index, figure="measured_samples")
        contradiction = _counted(segment, sizes.counts)
        if contradiction:
            yield contradiction.at(*_ends(segment), segment=index, figure="consumed_samples")


def _counted(segment: Segment, counts: Counts) -> Contradiction | None:
    """Compare the consumed samples between two records with their iterations, if the batch size is constant."""
    first, last, batches = segment.first, segment.last, segment.metrics.get("global_batch_size")
    if first is None or last is None or first.iteration is None or last.iteration is None:
        return None
    before, after = first.values.get("consumed_samples"), last.values.get("consumed_samples")
    if before is None or after is None or batches is None or batches.min != batches.max or after < before:
        return None
    return samples(after - before, last.iteration - first.iteration, batches.max, counts)


def _ends(segment: Segment) -> tuple[int | None, int | None]:
    return (segment.first.line if segment.first else None, segment.last.line if segment.last else None)


def layout_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        contradiction = layout(segment_sizes(segment))
        if contradiction:
            yield contradiction.at(segment.lines.first if segment.lines else None, segment=index, figure="world_size")


def batch_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        contradiction = batch(segment_sizes(segment))
        if contradiction:
            yield contradiction.at(
                segment.lines.first if segment.lines else None, segment=index, figure="global_batch_size"
            )


def device_map_in_document(document: Document) -> Iterator[Contradiction]:
    for index, config in enumerate(document.configs):
        if isinstance(config.data, Mapping):
            for name, contradiction in device_map(config.data).items():
                yield contradiction.at(config.line, figure=name, index=index)


def layout_of_run(run: RunFacts) -> Iterator[Contradiction]:
    contradiction = layout(run_sizes(run))
    if contradiction:
        yield contradiction.at(run=run.number, figure="world_size")


def batch_of_run(run: RunFacts) -> Iterator[Contradiction]:
    contradiction = batch(run_sizes(run))
    if contradiction:
        yield contradiction.at(run=run.number, figure="global_batch_size")
