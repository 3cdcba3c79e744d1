"""Tokens and steps that must agree: rate x time with the tokens of a step, planned steps with examples, and health."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from parlab.findings.contradictions import Amount, Contradiction, Counts, RunFacts, agree, looks_like, ratio_of, shown
from parlab.findings.facts import count, number, part, run_sizes, segment_sizes
from parlab.findings.rates import record_amount
from parlab.formats.grammar.units import to_float
from parlab.formats.schema import Document, Launch, Segment, StepRecord

FACTOR = 0.03
"""Rates are averaged over other steps than times: a forgotten factor is recognised within 3 %."""

MORE_THAN_ALL = 0.10
"""Padding makes a rate smaller than batch x sequence, and nothing makes it larger."""

EXPLODED = 100.0
"""A gradient norm so many times the median is an outlier that no clipping explains."""

# A run slows down if the last third of its steps takes so many times as long as the first, and the middle between.
SLOWER, STEADY = 1.2, 1.02
NO_LOSS = 0.1
"""Losses of reinforcement learning begin at 0, and may end there."""
LEAST_RECORDS = 5
"""With fewer records, a median says little."""


def tokens_of_step(rate: Amount, step_s: Amount, tokens: float, counts: Counts) -> Contradiction | None:
    """Compare tokens per second x step time with the tokens of a step.

    Fewer tokens are padding, unless the factor is that of the accumulation steps or the GPUs.
    """
    done = rate.times(step_s)
    if done.value <= 0 or tokens <= 0 or agree(done, Amount(tokens), FACTOR):
        return None
    ratio = ratio_of(done.value, tokens)
    known = [value for value in counts if value and value >= 2]
    is_known = any(abs(ratio / value - 1) <= FACTOR for value in known)
    if not is_known and done.value < tokens * (1 + MORE_THAN_ALL):
        return None
    return Contradiction(
        f"{shown(rate.value)} tokens/s x {shown(step_s.value)} s = {shown(done.value)} tokens per step, but a step has"
        f" {shown(tokens)} tokens: {shown(tokens / step_s.value)} tokens/s{looks_like(ratio, counts, FACTOR)}.",
        {"tokens_per_s": rate.value, "step_time_s": step_s.value, "tokens_per_step": tokens,
         "expected_tokens_per_s": tokens / step_s.value},
    )  # fmt: skip


def tokens_of_step_in_document(document: Document) -> Iterator[Contradiction]:
    """Check the last record that prints both, of steps that are timed themselves, and medians beside a bar's mean."""
    for index, segment in enumerate(document.segments):
        sizes, time = segment_sizes(segment), segment.metrics.get("step_time_s")
        if time is None or sizes.is_ramped or sizes.is_curriculum:
            continue
        accumulation = count(segment.launch.gradient_accumulation_steps)
        counts = sizes.counts._replace(accumulation=accumulation or sizes.counts.accumulation)
        checked = _timed(segment, sizes.gpus) if time.kind == "printed" else _averaged(segment, sizes.gpus)
        if checked is not None and (contradiction := tokens_of_step(*checked, counts)):
            yield contradiction.at(segment.last.line if segment.last else None, segment=index, figure="tokens_per_s")


def _timed(segment: Segment, gpus: int | None) -> tuple[Amount, Amount, float] | None:
    """Return rate, time and tokens of the step of the last record."""
    record, tokens = segment.last, printed_tokens(segment.launch)
    if record is None or not tokens:
        return None
    rate, step = record_amount(record, "tokens_per_s"), record_amount(record, "step_time_s")
    if rate is None and gpus and (each := record_amount(record, "tokens_per_s_per_gpu")):
        rate = each.scaled(float(gpus))
    return (rate, step, float(tokens)) if rate and step else None


def _averaged(segment: Segment, gpus: int | None) -> tuple[Amount, Amount, float] | None:
    """Return the medians of rate and time, and the tokens of the largest step, if they are far too many for it."""
    most, rate = _most_tokens(segment.launch), tokens_per_s(segment, gpus)
    step_s = segment.metrics["step_time_s"].median
    if not most or rate is None or rate * step_s < FAR * most:
        return None
    return Amount(rate), Amount(step_s), float(most)


def tokens_per_s(segment: Segment, gpus: int | None) -> float | None:
    """Return the median of the tokens per second of all GPUs, also from those of one."""
    rate, each = segment.metrics.get("tokens_per_s"), segment.metrics.get("tokens_per_s_per_gpu")
    return rate.median if rate else each.median * gpus if each and gpus else None


MOST_TOKENS_PER_S = 1e12
"""No cluster trains a model on more: 100,000 GPUs of 10 PFLOP/s at 10 % do so with 16 million parameters."""


def rates_in_document(document: Document) -> Iterator[Contradiction]:
    """Find tokens per second that no cluster reaches, as counters that overflow give."""
    for index, segment in enumerate(document.segments):
        rate = tokens_per_s(segment, 1)
        if rate is None or rate <= MOST_TOKENS_PER_S:
            continue
        message = f"{shown(rate)} tokens/s are more than any cluster reaches: a counter of the tokens has overflowed."
        yield Contradiction(message, {"tokens_per_s": rate}).at(
            last_line(segment), segment=index, figure="tokens_per_s"
        )


FAR = 1.9
"""How many times the tokens of the largest step are too many, however the time of a step was averaged."""


def _most_tokens(launch: Launch) -> int | None:
    """Return the tokens of a step in which all GPUs have samples of their own; None where a size is not printed."""
    sizes = (launch.micro_batch_size, launch.gradient_accumulation_steps, launch.world_size, launch.sequence_length)
    if "gradient_accumulation_steps" in launch.derived or not all(sizes):
        return None
    return math.prod(size for size in sizes if size)


def printed_tokens(launch: Launch) -> int | None:
    """Return the tokens of a step: stated, else batch x sequence length as printed."""
    stated = count(launch.arguments.get("tokens_per_step"))
    if stated or "global_batch_size" in launch.derived:
        return stated
    return (launch.global_batch_size or 0) * (launch.sequence_length or 0) or None


_SEEN = ("tokens_seen", "n_tokens_seen", "consumed_tokens", "num_tokens_seen")


def tokens_seen_in_document(document: Document) -> Iterator[Contradiction]:
    """Compare the tokens seen with the steps x the tokens of a step; only a whole factor is reported.

    A run that goes on from a checkpoint has seen more tokens, by no whole factor.
    """
    for index, segment in enumerate(document.segments):
        sizes, tokens, last = segment_sizes(segment), printed_tokens(segment.launch), segment.last
        seen = next((segment.metrics[name].last for name in _SEEN if name in segment.metrics), None)
        if not seen or not tokens or last is None or not last.iteration or sizes.is_ramped or sizes.is_curriculum:
            continue
        expected = float(tokens * last.iteration)
        factor = round(ratio_of(seen, expected), 3)
        if factor < 2 or not factor.is_integer():
            continue
        yield Contradiction(
            f"{shown(seen)} tokens are seen after {shown(last.iteration)} steps of {shown(tokens)} tokens, which are"
            f" {shown(expected)}{looks_like(factor, sizes.counts, FACTOR)}.",
            {"tokens_seen": seen, "expected_tokens": expected},
        ).at(last.line, segment=index, figure="tokens_seen")


# Of a translation, one side alone.
_ALL_TOKENS = ("tokens_per_s", "source_tokens_per_s", "target_tokens_per_s")
_SAMPLE_NAMES = ("global_batch_size", "micro_batch_size")


def tokens_of_samples(document: Document) -> Iterator[Contradiction]:
    """Find steps with fewer tokens than samples, as where a batch size counts tokens."""
    for index, segment in enumerate(document.segments):
        time, arguments = segment.step_time_s, segment.launch.arguments
        own = (getattr(segment.launch, name) for name in _SAMPLE_NAMES)
        samples = next((size for size in (*own, count(arguments.get("batch_size"))) if size), None)
        rates = [segment.metrics[name].median for name in _ALL_TOKENS if name in segment.metrics]
        if not samples or not rates or time is None or segment.kinds.get("step_time_s") == "part":
            continue
        rate, tokens = max(rates), max(rates) * time.median
        if tokens >= samples or arguments.get("batch_type") == "tokens":
            continue
        yield Contradiction(
            f"{shown(rate)} tokens/s x {shown(time.median)} s = {shown(tokens)} tokens per step, fewer than the"
            f" {shown(samples)} samples of a batch: the batch size may count tokens.",
            {"tokens_per_s": rate, "step_time_s": time.median, "tokens_per_step": tokens, "samples": float(samples)},
        ).at(last_line(segment), segment=index, figure="tokens_per_s")


def steps_of_examples(steps: float, examples: float, epochs: float, batch: float) -> Contradiction | None:
    """Compare planned steps with examples x epochs / batch; fewer are a limit that somebody set."""
    if min(steps, examples, epochs, batch) <= 0:
        return None
    most = math.ceil(examples / batch) * math.ceil(epochs)
    if steps <= most + math.ceil(epochs):
        return None
    return Contradiction(
        f"{shown(steps)} steps are planned, but {shown(examples)} examples x {shown(epochs)} epochs / {shown(batch)}"
        f" samples = {shown(most)} steps{looks_like(ratio_of(steps, most))}; the batch that is stated is not the one"
        " that the steps have.",
        {"steps": steps, "examples": examples, "epochs": epochs, "global_batch_size": batch,
         "expected_steps": float(most)},
    )  # fmt: skip


_OF_COMPLETIONS = re.compile(r"completion|^rewards?(?:_|$)")


def steps_in_document(document: Document) -> Iterator[Contradiction]:
    for index, segment in enumerate(document.segments):
        arguments, batch = segment.launch.arguments, count(segment.launch.global_batch_size)
        examples, epochs = count(arguments.get("num_examples")), count(arguments.get("num_train_epochs"))
        # A batch of GRPO counts completions, of which each example has several.
        generations = count(arguments.get("num_generations"))
        if generations is None and any(_OF_COMPLETIONS.search(name) for name in segment.metrics):
            continue
        examples = examples and examples * (generations or 1)
        steps = count(arguments.get("max_steps")) or (segment.steps.total if segment.steps else None)
        planned = (float(number or 0) for number in (steps, examples, epochs, batch))
        if contradiction := steps_of_examples(*planned):
            yield contradiction.at(segment.lines.first if segment.lines else None, segment=index, figure="steps")


# Keys under which trainers print the samples, the seconds and the rate of the same steps.
_SAMPLES, _SECONDS, _RATES = ("avg_samples", "samples"), ("avg_batch_cost", "batch_cost"), ("ips",)
OFF = 1.5


def samples_over_seconds(document: Document) -> Iterator[Contradiction]:
    """Compare the rate of a step with the samples and seconds that are printed beside it."""
    for index, segment in enumerate(document.segments):
        record = segment.last
        if record is None:
            continue
        samples, seconds, rate = (_printed(record, keys) for keys in (_SAMPLES, _SECONDS, _RATES))
        if not samples or not seconds or not rate:
            continue
        # The samples are those of a step, or of all steps since the last line.
        ratios = [samples / steps / seconds / rate for steps in (1.0, _steps_between(segment))]
        if any(1 / OFF < ratio < OFF for ratio in ratios):
            continue
        yield Contradiction(
            f"{shown(samples)} samples in {shown(seconds)} s are {shown(samples / seconds)} samples/s, but"
            f" {shown(rate)} are printed.",
            {"samples": samples, "seconds": seconds, "printed": rate},
        ).at(record.line, segment=index, figure="samples_per_s")


def samples_of_training(document: Document) -> Iterator[Contradiction]:
    """Compare the samples of all epochs with the rate and the duration of a whole training, as Hugging Face prints."""
    for index, segment in enumerate(document.segments):
        names = ("train_samples", "epoch", "train_runtime_s", "samples_per_s")
        samples, epochs, seconds, rate = (_last(segment, name) for name in names)
        if not samples or not epochs or not seconds or not rate:
            continue
        made, stated = rate * seconds, samples * epochs
        if stated / FAR < made < FAR * stated:
            continue
        message = (
            f"{shown(rate)} samples/s in {shown(seconds)} s are {shown(made)} samples, but {shown(samples)} samples in"
            f" {shown(epochs)} epoch{'' if epochs == 1.0 else 's'} are {shown(stated)}."
        )
        last = segment.lines.last if segment.lines is not None else None
        yield Contradiction(message, {"made": made, "stated": stated}).at(last, segment=index, figure="samples_per_s")


def _last(segment: Segment, name: str) -> float:
    statistic = segment.metrics.get(name)
    return statistic.last if statistic is not None else float(count(segment.launch.arguments.get(name)) or 0)


def _steps_between(segment: Segment) -> float:
    """Return how many steps lie between two records of a segment, on average; at least one."""
    if segment.first is None or segment.last is None or segment.records < 2:
        return 1.0
    steps = (segment.last.iteration or 0) - (segment.first.iteration or 0)
    return max(1.0, steps / (segment.records - 1))


def _printed(record: StepRecord, keys: Sequence[str]) -> float:
    cell = next((record.printed[key] for key in keys if key in record.printed), None)
    return (to_float(cell.value) or 0.0) if cell is not None else 0.0


def slows(run: RunFacts) -> Iterator[Contradiction]:
    """Find a run whose steps take longer and longer, over hours; steps that grow by plan are not compared."""
    trend, sizes = part(run.summary, "trend"), run_sizes(run)
    thirds, hours = trend.get("thirds_s"), number(trend.get("hours"))
    if not isinstance(thirds, list) or len(thirds) != 3 or hours is None or sizes.is_ramped or sizes.is_curriculum:
        return
    first, middle, last = (number(third) or 0.0 for third in thirds)
    if not 0.0 < first <= middle * STEADY or not middle <= last * STEADY or last < SLOWER * first:
        return
    yield Contradiction(
        f"Steps take {shown(first)} s in the first third of the run and {shown(last)} s in the last, over"
        f" {shown(hours)} hours: the run slows down.",
        {"first_s": first, "last_s": last, "hours": hours},
    ).at(run=run.number, figure="step_time_s")


def gradients_in_document(document: Document) -> Iterator[Contradiction]:
    """Find gradients that are always 0, or explode at the end."""
    for index, segment in enumerate(document.segments):
        norms = segment.metrics.get("grad_norm")
        if norms is None or norms.count < LEAST_RECORDS:
            continue
        message = ""
        if norms.max == norms.min == 0.0:
            message = f"The gradient norm is 0 in all {shown(norms.count)} records: no parameter is trained."
        elif norms.median > 0 and norms.last > EXPLODED * norms.median:
            message = f"The last gradient norm is {shown(norms.last)}, the median {shown(norms.median)}: it explodes."
        if message:
            numbers = {"median": norms.median, "last": norms.last}
            yield Contradiction(message, numbers).at(last_line(segment), segment=index, figure="grad_norm")


def losses_in_document(document: Document) -> Iterator[Contradiction]:
    """Find a loss that is exactly 0 at the end, and was none at the beginning."""
    for index, segment in enumerate(document.segments):
        loss = segment.loss
        if loss is None or loss.last != 0.0 or loss.first < NO_LOSS:
            continue
        message = f"The loss falls from {shown(loss.first)} to exactly 0: labels are all masked, or numbers overflow."
        yield Contradiction(message, {"first": loss.first, "last": loss.last}).at(
            last_line(segment), segment=index, figure="loss"
        )


def scales_in_document(document: Document) -> Iterator[Contradiction]:
    """Find a loss scale that has fallen to 1 or less: gradients overflow at any scale."""
    for index, segment in enumerate(document.segments):
        scales = segment.metrics.get("loss_scale")
        if scales is None or scales.count < LEAST_RECORDS or scales.max < 2**10 or scales.last > 1.0:
            continue
        message = f"The loss scale falls from {shown(scales.max)} to {shown(scales.last)}: gradients always overflow."
        numbers = {"largest": scales.max, "last": scales.last}
        yield Contradiction(message, numbers).at(last_line(segment), segment=index, figure="loss_scale")


def last_line(segment: Segment) -> int | None:
    return segment.last.line if segment.last is not None else None
