"""Counts that must multiply: layouts, batches, samples, device maps. Counts are exact, so there is no tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from parlab.findings.doubts import Amount, Counts, Doubt, RunFacts, agree, looks_like, ratio_of, shown
from parlab.findings.facts import Sizes, count, run_sizes, segment_sizes, stated
from parlab.formats.schema import Document, Segment


def samples(told: float, iterations: float, batch: float, counts: Counts | None = None) -> Doubt | None:
    """Compare stated samples with iterations x global batch size."""
    expected = iterations * batch
    if expected <= 0 or agree(Amount(told), Amount(expected)):
        return None
    return Doubt(
        f"{shown(told)} samples are stated, but {shown(iterations)} iterations of {shown(batch)} samples are"
        f" {shown(expected)}{looks_like(ratio_of(told, expected), counts)}.",
        {"samples": told, "iterations": iterations, "global_batch_size": batch, "expected_samples": expected},
    )


def layout(sizes: Sizes) -> Doubt | None:
    """Compare GPUs with TP x PP x DP (x context parallel)."""
    factors = {"TP": sizes.tensor, "PP": sizes.pipeline, "DP": sizes.data}
    if (sizes.context or 1) > 1:
        factors["CP"] = sizes.context
    product = math.prod(factor or 0 for factor in factors.values())
    if not sizes.gpus or not product or product == sizes.gpus:
        return None
    words = " x ".join(f"{name} {factor}" for name, factor in factors.items())
    return Doubt(
        f"{shown(sizes.gpus)} GPUs are stated, but {words} are {shown(product)}.",
        {"gpus": float(sizes.gpus), "expected_gpus": float(product)},
    )


def batch(sizes: Sizes) -> Doubt | None:
    """Compare the global batch size with micro batch x accumulation x DP; with micro batch x DP, which divides it."""
    if not sizes.global_batch or not sizes.micro_batch or not sizes.data or sizes.is_ramped:
        return None
    share = sizes.micro_batch * sizes.data
    numbers = {
        "global_batch_size": float(sizes.global_batch),
        "micro_batch_size": float(sizes.micro_batch),
        "data_parallel_size": float(sizes.data),
    }
    told = f"A global batch of {shown(sizes.global_batch)} sequences is stated, but"
    if sizes.accumulation:
        product = share * sizes.accumulation
        if product == sizes.global_batch:
            return None
        clause = looks_like(ratio_of(product, sizes.global_batch), sizes.counts._replace(gpus=None))
        return Doubt(
            f"{told} micro batch {shown(sizes.micro_batch)} x accumulation {shown(sizes.accumulation)}"
            f" x DP {shown(sizes.data)} are {shown(product)}{clause}.",
            numbers | {"gradient_accumulation_steps": float(sizes.accumulation), "expected": float(product)},
        )
    if sizes.global_batch % share == 0:
        return None
    return Doubt(
        f"{told} it is no multiple of micro batch {shown(sizes.micro_batch)} x DP {shown(sizes.data)}, {shown(share)}.",
        numbers | {"divisor": float(share)},
    )


def device_map(data: Mapping[str, Any]) -> dict[str, Doubt]:
    """Compare a map of stages and shards to devices with the settings beside it; setting -> doubt."""
    doubts: dict[str, Doubt] = {}
    mapping = data.get("device_mapping")
    if not isinstance(mapping, Mapping):
        return doubts
    stages, shards = count(data.get("stage_cnt")), count(data.get("sharding_size"))
    if stages and len(mapping) != stages:
        doubts["stage_cnt"] = Doubt(
            f"stage_cnt says {shown(stages)} stages, but device_mapping places {len(mapping)}.",
            {"stage_cnt": float(stages), "mapped_stages": float(len(mapping))},
        )
    placed = {str(name)[:80]: len(part) for name, part in mapping.items() if isinstance(part, Mapping | list)}
    wrong = {name: shard_count for name, shard_count in placed.items() if shard_count != shards}
    if shards and wrong:
        name, mapped = next(iter(wrong.items()))
        others = f", and {len(wrong) - 1} other stages differ too" if len(wrong) > 1 else ""
        doubts["sharding_size"] = Doubt(
            f"sharding_size says {shown(shards)} shards a stage, but device_mapping places {mapped} of {name}{others}.",
            {"sharding_size": float(shards), "mapped_shards": float(mapped), "stages_that_differ": float(len(wrong))},
        )
    return doubts


def samples_in_document(document: Document) -> Iterator[Doubt]:
    """Samples that prose states for its iterations, and samples that a log counts from its first to its last record."""
    for index, segment in enumerate(document.segments):
        sizes = segment_sizes(segment)
        told, iterations = stated(segment, "measured_samples"), stated(segment, "measured_iterations")
        if told and iterations and sizes.global_batch:
            doubt = samples(told.value or 0.0, iterations.value or 0.0, sizes.global_batch, sizes.counts)
            if doubt:
                yield doubt.at(told.line, segment=index, figure="measured_samples")
        doubt = _counted(segment, sizes.counts)
        if doubt:
            yield doubt.at(*_ends(segment), segment=index, figure="consumed_samples")


def _counted(segment: Segment, counts: Counts) -> Doubt | None:
    """Compare consumed samples between two records with the iterations between them; while the batch size holds."""
    first, last, batches = segment.first, segment.last, segment.metrics.get("global_batch_size")
    if first is None or last is None or first.iteration is None or last.iteration is None:
        return None
    before, after = first.values.get("consumed_samples"), last.values.get("consumed_samples")
    if before is None or after is None or batches is None or batches.min != batches.max or after < before:
        return None
    return samples(after - before, last.iteration - first.iteration, batches.max, counts)


def _ends(segment: Segment) -> tuple[int | None, int | None]:
    return (segment.first.line if segment.first else None, segment.last.line if segment.last else None)


def layout_in_document(document: Document) -> Iterator[Doubt]:
    for index, segment in enumerate(document.segments):
        doubt = layout(segment_sizes(segment))
        if doubt:
            yield doubt.at(segment.lines.first if segment.lines else None, segment=index, figure="world_size")


def batch_in_document(document: Document) -> Iterator[Doubt]:
    for index, segment in enumerate(document.segments):
        doubt = batch(segment_sizes(segment))
        if doubt:
            yield doubt.at(segment.lines.first if segment.lines else None, segment=index, figure="global_batch_size")


def device_map_in_document(document: Document) -> Iterator[Doubt]:
    for index, config in enumerate(document.configs):
        if isinstance(config.data, Mapping):
            for name, doubt in device_map(config.data).items():
                yield doubt.at(config.line, figure=name, index=index)


def layout_of_run(run: RunFacts) -> Iterator[Doubt]:
    doubt = layout(run_sizes(run))
    if doubt:
        yield doubt.at(run=run.number, figure="world_size")


def batch_of_run(run: RunFacts) -> Iterator[Doubt]:
    doubt = batch(run_sizes(run))
    if doubt:
        yield doubt.at(run=run.number, figure="global_batch_size")
