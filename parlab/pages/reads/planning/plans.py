"""A training plan as a sentence and pictures: how long, at what cost, whether it fits, and what would do better."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from parlab.charts.format import SPACE, probability, quantity, significant, unit_for
from parlab.charts.svg import Svg
from parlab.charts.sweeps import plans as chart
from parlab.charts.sweeps.plans import Curve, PartsBar, PlanPoint, Rate
from parlab.lab.selectors.analysis.plans import device_named, offers_of, price_of
from parlab.planner import Calibration
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.presets import PublishedRun, preset
from parlab.planner.job.prices import Price
from parlab.planner.job.workload import Job
from parlab.planner.prediction.prediction import Prediction, predict_job
from parlab.planner.requests.answer import Outline, work
from parlab.planner.requests.layout_fields import layout_fields
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.budget import Budget, budget
from parlab.planner.search.frontier import SURE, Choice, Offer, choices, keeps, meeting
from parlab.planner.search.layouts import Layout

_GIB = 1 << 30
_USUAL_DAYS = 60.0
_OTHERS = ("B200", "H100 SXM", "MI300X", "A100 SXM4 80 GB")
"""Devices of which the first two with a price stand beside that of the plan."""
_MOST_OTHERS = 2
_MUCH_LESS = 0.8
"""Share of the cost of a plan below which another one is named."""
MEMORY_PARTS = (
    "activations_bytes", "weights_bytes", "gradients_bytes", "optimizer_bytes", "logits_bytes", "buffers_bytes",
    "overhead_bytes",
)  # fmt: skip
_QUANTILES = [(number + 0.5) / 40 for number in range(40)]
_LOSSES = {
    "bubble_s": "the pipeline's bubble",
    "tensor_s": "tensor parallel messages",
    "context_s": "context parallel messages",
    "expert_s": "expert parallel messages",
    "pipeline_s": "messages between stages",
    "data_s": "data parallel messages",
    "optimizer_s": "the optimizer",
    "other_s": "fixed overhead",
}
"""What a step takes besides compute, as words."""


class Chance(NamedTuple):
    """A probability as a text with a class: good, warn or bad."""

    text: str
    kind: str


class Factor(NamedTuple):
    """A size of the layout; the product of all is the number of GPUs."""

    size: int
    name: str


class Sentence(NamedTuple):
    """The answer in words."""

    days: str
    interval: str
    cost: str
    fits: Chance
    limits: list[tuple[str, Chance]]
    """`Meets 60 days`, `Costs at most USD 100 M`, each with its probability."""
    limited_by: str
    question: str
    """Tokens, batch and precision."""


class OfferRow(NamedTuple):
    """What the plan takes and costs in one kind of contract."""

    price: Price
    days: float
    cost: float


class PlanPictures(NamedTuple):
    """What the page shows of the prediction of one layout."""

    sentence: Sentence
    factors: list[Factor]
    within: str
    """What the data parallel ranks share besides: `EP 8 within data parallel`."""
    details: str
    memory: PartsBar
    memory_curve: Svg
    memory_spread: str
    time: PartsBar
    time_spread: str
    published: Svg | None
    published_note: str
    offers: list[OfferRow]


class Remedy(NamedTuple):
    """Another number of GPUs, or another device, that keeps the limits."""

    device: str
    gpus: int
    days: str
    cost: str
    chance: str


class Frontier(NamedTuple):
    """Days against cost of several devices, and what would keep the limits."""

    svg: Svg | None
    unit: str
    remedies: list[Remedy]
    remedies_for: str = "To meet it"
    """What the remedies do."""


def chance_of(value: float) -> Chance:
    """Write a probability: below 1 and above 99 % as such."""
    kind = "good" if value >= 0.95 else "warn" if value >= 0.5 else "bad"
    return Chance(probability(value), kind)


def money(value: float | None, currency: str) -> str:
    """Write a sum: USD 322 M; nothing for None."""
    if value is None:
        return ""
    unit = unit_for([value], "")
    return f"{currency} {significant(value / unit.factor)}{SPACE}{unit.name.strip()}".strip()


def pictures(question: PlanRequest, outline: Outline, currency: str) -> PlanPictures:
    """Return the sentence and the pictures of a question that was answered."""
    prediction, job = outline.prediction, outline.prediction.job
    limit, distribution = prediction.cluster.device.memory_bytes, prediction.distribution
    high = distribution.quantile(0.975)
    extent = 1.04 * max(limit, high, prediction.memory_bytes)
    published, note = _published(question, outline)
    return PlanPictures(
        _sentence(question, outline, currency),
        [
            Factor(job.tensor_parallel, "tensor"),
            Factor(job.context_parallel, "context"),
            Factor(job.pipeline_parallel, "pipeline"),
            Factor(job.data_parallel, "data"),
        ],
        f"EP {job.expert_parallel} within data parallel" if job.expert_parallel > 1 else "",
        _details(prediction),
        chart.memory_bar(
            [(name, getattr(prediction.memory, name)) for name in MEMORY_PARTS], prediction.memory_bytes, extent
        ),
        chart.memory_curve(Curve([distribution.quantile(share) for share in _QUANTILES], limit, extent)),
        f"{significant(distribution.quantile(0.1) / _GIB)}\u2013{significant(distribution.quantile(0.9) / _GIB)}",
        chart.time_bar([(name, getattr(prediction.parts, name)) for name in chart.TIME_KEYS], prediction.iteration_s),
        _time_spread(outline),
        published,
        note,
        _offer_rows(question, outline.budget),
    )


def _time_spread(outline: Outline) -> str:
    """Return between which times of a step 80 % of such predictions lie, by the interval of the days."""
    seconds = outline.prediction.iteration_s
    ends = [seconds * days / outline.budget.days for days in (outline.budget.days_low, outline.budget.days_high)]
    unit = unit_for([seconds], "s")
    low, high = (significant(end / unit.factor) for end in ends)
    return f"{low}\u2013{high}{SPACE}{unit.name}"


def _offer_rows(question: PlanRequest, result: Budget) -> list[OfferRow]:
    """Return the prices of the device with what preemptions add; empty if there is one."""
    rows = [
        OfferRow(price, result.days / (1 - price.lost), result.gpu_hours * price.per_hour / (1 - price.lost))
        for price in offers_of(question.gpu)
    ]
    return rows if len(rows) > 1 else []


def _sentence(question: PlanRequest, outline: Outline, currency: str) -> Sentence:
    prediction, result = outline.prediction, outline.budget
    limits = []
    if question.wanted_days:
        meets = chance_of(result.chance(question.wanted_days))
        limits.append((f"Meets {question.wanted_days:g} days", meets))
    if question.wanted_cost and (chance := result.cost_chance(question.wanted_cost)) is not None:
        limits.append((f"Stays below {money(question.wanted_cost, currency)}", chance_of(chance)))
    parts = {name: getattr(prediction.parts, name) for name in _LOSSES}
    largest = max(parts, key=lambda name: parts[name])
    share = parts[largest] / prediction.iteration_s
    return Sentence(
        significant(result.days),
        f"{significant(result.days_low)}\u2013{significant(result.days_high)}",
        money(result.cost, currency),
        chance_of(prediction.fits_probability),
        limits,
        f"Compute is {100 * prediction.parts.compute_s / prediction.iteration_s:.0f}{SPACE}% of a step, "
        f"{_LOSSES[largest]} {100 * share:.0f}{SPACE}%.",
        f"{quantity(question.tokens_billion * 1e9, '')} tokens in batches of {question.global_batch:,} x"
        f" {question.sequence:,}, {question.precision}.",
    )


def _details(prediction: Prediction) -> str:
    job = prediction.job
    parts = [partition_text(job), f"micro batch {job.micro_batch_size}"]
    if job.pipeline_parallel > 1:
        chunks = f", {job.virtual_stages} chunks" if job.virtual_stages > 1 else ""
        parts.insert(0, f"{job.schedule}{chunks}")
    return ", ".join([*parts, f"recompute {job.recompute}"])


def _published(question: PlanRequest, outline: Outline) -> tuple[Svg | None, str]:
    entry = preset(question.model or "")
    runs = [run for run in entry.published if run.gpu == outline.prediction.cluster.device.name] if entry else []
    if not runs:
        return None, ""
    rates = [Rate("this plan", outline.work.tflops_per_gpu, outline.prediction.spread)]
    rates += [rate for run in runs if (rate := _rate(question, run, outline)) is not None]
    mfu = f" MFU of this plan: {100 * outline.work.mfu:.0f}{SPACE}%." if outline.work.mfu else ""
    return chart.against_published(rates), f"Squares: {runs[0].source}. Dots: predicted.{mfu}"


def _rate(question: PlanRequest, run: PublishedRun, outline: Outline) -> Rate | None:
    """Predict a published training in its own layout; None if the question has another batch or nodes."""
    gpu = outline.prediction.cluster.device
    asked = question.model_copy(update={**dict(run.layout), "nodes": run.gpus // question.gpus_per_node})
    try:
        predicted = predict_job(asked.job(), asked.cluster(gpu))
    except ValueError:
        return None
    return Rate(f"{run.by}, {run.gpus:,}", work(predicted).tflops_per_gpu, predicted.spread, run.tflops_per_gpu)


def offers(question: PlanRequest, gpu: Gpu, currency: str) -> list[Offer]:
    """Return the device of a question with its price, and the first others that have one in the same currency."""
    own = Offer(gpu, question.price)
    priced = [(name, price_of(name)) for name in _OTHERS if name != gpu.name]
    others = [
        Offer(other, price.per_hour)
        for name, price in priced
        if price and price.currency == currency and (other := device_named(name))
    ]
    return [own, *others[: _MOST_OTHERS - (own.per_hour is not None)]]


@lru_cache(maxsize=64)
def _choices(
    question: PlanRequest, priced: tuple[Offer, ...], days: float, calibration: Calibration | None
) -> list[Choice]:
    return choices(question, priced, days, calibration)


def choices_of(
    question: PlanRequest, gpu: Gpu, days: float, calibration: Calibration | None, currency: str
) -> list[Choice]:
    """Return the best layouts on several numbers of GPUs, searched once."""
    return _choices(question, tuple(offers(question, gpu, currency)), days, calibration)


def around(question: PlanRequest, result: Budget | None) -> float:
    """Return the days around which other plans are compared."""
    return question.wanted_days or (result.days if result else _USUAL_DAYS)


def frontier(
    question: PlanRequest, gpu: Gpu, outline: Outline, calibration: Calibration | None, currency: str
) -> Frontier:
    """Return days against cost around the deadline, and the plans that keep the limits if this one may not.

    For one that keeps them it is the cheapest other plan, if that costs much less.
    """
    found = choices_of(question, gpu, around(question, outline.budget), calibration, currency)
    drawn = [point for choice in found if (point := _point(choice.device, choice.gpus, choice.budget, currency))]
    own = _point(gpu.name, question.gpus, outline.budget, currency)
    unit = unit_for([point.cost for point in drawn], "")
    kept = meeting(found, question.wanted_days, question.wanted_cost)
    is_kept = keeps(outline.budget, question.wanted_days, question.wanted_cost) >= SURE
    remedies = [_remedy(choice, question, currency) for choice in (_cheaper(kept, outline.budget) if is_kept else kept)]
    return Frontier(
        chart.frontier(drawn, own, question.wanted_days, unit) if drawn else None,
        f"{unit.name.strip()} {currency}".strip(),
        remedies,
        "Cheaper" if is_kept else "To meet it",
    )


def _cheaper(kept: Sequence[Choice], own: Budget | None) -> list[Choice]:
    """Return the cheapest of several plans, if it costs much less than this one."""
    priced = [(choice.budget.cost, choice) for choice in kept if choice.budget.cost is not None]
    if own is None or own.cost is None or not priced:
        return []
    cost, cheapest = min(priced, key=lambda each: each[0])
    return [cheapest] if cost < _MUCH_LESS * own.cost else []


def _point(device: str, gpus: int, result: Budget, currency: str) -> PlanPoint | None:
    if result.cost is None:
        return None
    text = (
        f"{gpus:,} {device}: {significant(result.days)} days ({significant(result.days_low)} to"
        f" {significant(result.days_high)}), {money(result.cost, currency)}"
    )
    return PlanPoint(device, gpus, result.days, result.days_low, result.days_high, result.cost, text)


def _remedy(choice: Choice, question: PlanRequest, currency: str) -> Remedy:
    chance = keeps(choice.budget, question.wanted_days, question.wanted_cost)
    return Remedy(
        choice.device,
        choice.gpus,
        significant(choice.budget.days),
        money(choice.budget.cost, currency),
        chance_of(chance).text,
    )


class LayoutRow(NamedTuple):
    """A layout of the search as a row of the table."""

    layout: Layout
    name: str
    partition: str
    days: float
    interval: Svg
    meets: str
    tflops: float
    memory_bar: Svg
    fits: Chance
    cost: float | None
    is_own: bool


def layout_rows(question: PlanRequest, own: Job, layouts: Sequence[Layout]) -> list[LayoutRow]:
    """Return layouts with their days, costs and chances; the plan's own layout is marked."""
    budgets = [budget(layout.prediction, question.tokens_billion * 1e9, question.price) for layout in layouts]
    ends = [value for each in budgets for value in (each.days_low, each.days_high)]
    extent = (min(ends), max(ends)) if ends else (0.0, 1.0)
    return [_layout_row(question, own, *each, extent) for each in zip(layouts, budgets, strict=True)]


def _layout_row(
    question: PlanRequest, own: Job, layout: Layout, result: Budget, extent: tuple[float, float]
) -> LayoutRow:
    prediction, job = layout.prediction, layout.job
    capacity = prediction.cluster.device.memory_bytes
    experts = f" · EP {job.expert_parallel}" if job.model.num_experts > 1 else ""
    wanted = question.wanted_days
    return LayoutRow(
        layout,
        f"TP {job.tensor_parallel} · CP {job.context_parallel} · PP {job.pipeline_parallel}"
        f" · DP {job.data_parallel}{experts}",
        partition_text(job),
        result.days,
        chart.interval(result.days_low, result.days, result.days_high, extent, wanted),
        chance_of(result.chance(wanted)).text if wanted else "",
        work(prediction).tflops_per_gpu,
        chart.share_bar(
            prediction.memory_bytes / capacity,
            f"{significant(prediction.memory_bytes / _GIB)} of {significant(capacity / _GIB)}{SPACE}GiB",
        ),
        chance_of(prediction.fits_probability),
        result.cost,
        layout_fields(job) == layout_fields(own),
    )


def layout_text(layout: Layout) -> str:
    """Return a one-line description of a layout."""
    job = layout.job
    parts = [f"TP {job.tensor_parallel}", f"PP {job.pipeline_parallel}", f"DP {job.data_parallel}"]
    parts += [f"CP {job.context_parallel}"] if job.context_parallel > 1 else []
    parts += [experts_text(job)] if job.model.num_experts > 1 else []
    parts.append(f"micro batch {job.micro_batch_size}")
    if job.pipeline_parallel > 1:
        parts.append(job.schedule + (f" in {job.virtual_stages} chunks" if job.virtual_stages > 1 else ""))
    parts.append(f"{partition_text(job)}, recompute {job.recompute}")
    parts += [f"in {job.recomputed_layers} layers per stage"] if job.recomputed_layers else []
    return ", ".join([*parts, "activations offloaded"] if job.offloads_activations else parts)


def experts_text(job: Job) -> str:
    """Return the expert parallel sizes of a layout."""
    shared = f" × ETP {job.expert_tensor_parallel}" if job.expert_tensor_parallel > 1 else ""
    return f"EP {job.expert_parallel}{shared}"


def partition_text(job: Job) -> str:
    """Return what the replicas of a layout partition: the ZeRO stage, or FSDP and HSDP."""
    if job.zero_stage < 3:
        return f"ZeRO {job.zero_stage}"
    name = f"HSDP over {job.shard_ranks}" if job.shard_ranks else "FSDP"
    return name if job.reshards_after_forward else f"{name}, weights kept"
