"""Records of any reader -> segments, in constant memory.

A segment is one launch. A new one opens when a reader says so (`opens`), or when one speaker's iterations run
backwards. The same iteration from many ranks, or said twice, is one step: its time is the slowest rank's. Placeholders
(a loss of -1, a timer or step time of 0) are no measurements. The first record of a launch is warm-up:
`mean_without_first`, samples/s, tokens/s and TFLOP/s leave it out; median, mean, p10 and p90 hold all records.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from parlab.formats import schema
from parlab.formats.launch import MAX_ARGUMENTS, normalise
from parlab.formats.records import Ending, Record
from parlab.formats.statistics import BLOCK, Stream

MAX_SEGMENTS = 500
MAX_NAMES = 500
MAX_RANKS = 16_384
MAX_VALIDATIONS = 2_000
RECENT = 16
TIMER_LIMIT = 2_048

# Slowest rank counts.
_LARGEST = ("step_time_s", "memory", "bytes")
# A placeholder, not a measurement, at or below this value.
_FLOORS = {
    "step_time_s": 0.0,
    "samples_per_s": 0.0,
    "tokens_per_s": 0.0,
    "flops_per_gpu": 0.0,
    "tokens_per_s_per_gpu": 0.0,
}
_LOSSES = ("loss", "lm_loss", "train_loss", "reduced_train_loss")


class Streams:
    """One Stream per name, and what each rank said at most."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.by_name: dict[str, Stream] = {}
        self.by_rank: dict[str, dict[int, float]] = {}
        self.waiting = 0

    def add(self, values: dict[str, float]) -> None:
        by_name = self.by_name
        for name, value in values.items():
            stream = by_name.get(name)
            if stream is None:
                if len(by_name) >= MAX_NAMES:
                    continue
                stream = by_name[name] = Stream(self.limit)
            stream.append(value)
        self.waiting += 1
        if self.waiting >= BLOCK:
            self.waiting = 0
            for stream in by_name.values():
                stream.flush()

    def spoke(self, rank: int, values: dict[str, float]) -> None:
        """Remember each rank's largest value."""
        for name, value in values.items():
            ranks = self.by_rank.setdefault(name, {})
            if len(ranks) < MAX_RANKS and value >= ranks.get(rank, value):
                ranks[rank] = value

    def statistics(self, lows: dict[str, float] | None = None) -> dict[str, schema.Statistic]:
        return {name: self.statistic(name, (lows or {}).get(name)) for name in self.by_name if self.by_name[name]}

    def statistic(self, name: str, low: float | None = None) -> schema.Statistic:
        stream = self.by_name[name]
        stream.flush()
        ranks = self.by_rank.get(name, {})
        return schema.Statistic(
            count=stream.count,
            first=stream.first,
            last=stream.last,
            mean=stream.mean,
            median=stream.quantiles(0.5)[0],
            min=stream.minimum if low is None else min(low, stream.minimum),
            max=stream.maximum,
            by_rank={str(rank): value for rank, value in sorted(ranks.items())} if len(ranks) > 1 else {},
        )


class Builder:
    """One segment under way."""

    def __init__(self, line: int, section: str | None) -> None:
        self.line = self.last_line = line
        self.section = section
        self.arguments: dict[str, Any] = {}
        self.dumped = False
        self.steps = Streams(16_384)
        self.timers = Streams(TIMER_LIMIT)
        self.timer_lows: dict[str, float] = {}
        self.memory = Streams(TIMER_LIMIT)
        self.memory_ranks: set[int | None] = set()
        self.metrics = Streams(TIMER_LIMIT)
        self.figures: dict[str, schema.Figure] = {}
        self.validation: list[schema.Validation] = []
        self.first: Record | None = None
        self.current: Record | None = None
        self.records = 0
        self.total: int | None = None
        self.skipped: float | None = None
        self.skipped_total: float | None = None
        self.end: Ending | None = None
        self.recent: deque[int] = deque(maxlen=RECENT)
        self.by_speaker: dict[int | None, int] = {}

    @property
    def empty(self) -> bool:
        return not (self.records or self.current or self.timers.by_name or self.memory.by_name or self.metrics.by_name
                    or self.validation or self.figures)  # fmt: skip

    def runs_backwards(self, record: Record) -> bool:
        """Tell whether this speaker's iterations start again; a late copy of a recent step does not count."""
        if record.iteration is None or self.current is None:
            return False
        last = self.by_speaker.get(record.rank)
        if last is None or record.iteration >= last:
            return False
        return not (
            record.iteration in self.recent and record.rank is None and len(self.by_speaker) == 1 and self._copy(record)
        )

    def _copy(self, record: Record) -> bool:
        """A step said twice carries the same loss within a second or so of the first time."""
        current = self.current
        if current is None or current.iteration is None or record.iteration is None:
            return False
        return 0 < current.iteration - record.iteration <= 2 and record.time is not None and record.time == current.time

    def step(self, record: Record) -> None:
        current = self.current
        if len(self.by_speaker) < MAX_RANKS:
            self.by_speaker[record.rank] = record.iteration or 0
        if current is not None and record.iteration is not None:
            if record.iteration == current.iteration:
                self._merge(current, record)
                return
            if record.iteration in self.recent:
                return
        self._close_step()
        self.current = record
        if self.end is not None and self.end.state != "finished":
            self.end = None

    def _merge(self, current: Record, record: Record) -> None:
        values = current.values
        for name, value in record.values.items():
            known = values.get(name)
            if known is None:
                values[name] = value
                if len(current.fields) < MAX_NAMES:
                    current.fields += tuple(f for f in record.fields if f.name == name)
                    current.raw += tuple(r for f, r in zip(record.fields, record.raw, strict=False) if f.name == name)
            elif value > known and (name == "step_time_s" or name.endswith("_bytes")):
                values[name] = value

    def _close_step(self) -> None:
        record, self.current = self.current, None
        if record is None:
            return
        if self.first is None:
            self.first = record
        self.records += 1
        self.last = record
        if record.iteration is not None:
            self.recent.append(record.iteration)
        values = record.values
        total = values.pop("total_iterations", None)
        if total is not None:
            self.total = int(total)
        skipped = values.get("skipped_iterations")
        if skipped:
            self.skipped = (self.skipped or 0.0) + skipped
        elif skipped is not None and self.skipped is None:
            self.skipped = 0.0
        cumulative = values.get("skipped_total")
        if cumulative is not None:
            self.skipped_total = max(self.skipped_total or 0.0, cumulative)
        self.steps.add(values if self._sound(values) else measured(values))

    @staticmethod
    def _sound(values: dict[str, float]) -> bool:
        return all(value > 0.0 for value in values.values())

    def time(self, record: Record) -> None:
        values = {name: value for name, value in record.values.items() if value > 0.0}
        self.timers.add(values)
        if record.rank is not None:
            self.timers.spoke(record.rank, values)
        if record.low:
            for name, value in record.low.items():
                if len(self.timer_lows) < MAX_NAMES:
                    self.timer_lows[name] = min(value, self.timer_lows.get(name, value))

    def remember(self, record: Record) -> None:
        self.memory.add(record.values)
        if len(self.memory_ranks) < MAX_RANKS:
            self.memory_ranks.add(record.rank)
        if record.rank is not None:
            self.memory.spoke(record.rank, record.values)

    def tell(self, arguments: dict[str, Any], *, dump: bool) -> None:
        """Take arguments in; what a dump says stands over command lines and remarks."""
        if dump:
            self.arguments = {**self.arguments, **arguments} if not self.dumped else {**arguments, **self.arguments}
            self.dumped = True
            return
        for name, value in arguments.items():
            if len(self.arguments) < MAX_ARGUMENTS:
                self.arguments.setdefault(name, value)

    def finish(self) -> schema.Segment:
        self._close_step()
        return _segment(self)

    last: Record | None = None


def measured(values: dict[str, float]) -> dict[str, float]:
    """Leave placeholders out: a loss or loss scale of -1, a time or throughput of 0."""
    return {
        name: value
        for name, value in values.items()
        if value > 0.0 or not (value <= _FLOORS.get(name, -1e400) or (value == -1.0 and "loss" in name))
    }


def _record(record: Record | None) -> schema.StepRecord | None:
    if record is None:
        return None
    printed = {
        cell.key: schema.PrintedCell(value=cell.value, unit=cell.unit, name=cell.name) for cell in record.printed()
    }
    return schema.StepRecord(
        iteration=record.iteration,
        line=record.line,
        time=record.time,
        rank=record.rank,
        values=record.values,
        printed=printed,
    )


def _segment(builder: Builder) -> schema.Segment:
    values, derived = normalise(builder.arguments)
    batch = builder.steps.by_name.get("global_batch_size")
    if values["global_batch_size"] is None and batch is not None:
        batch.flush()
        values["global_batch_size"] = int(batch.last)
        derived["global_batch_size"] = "printed with each iteration"
        again, more = normalise({**builder.arguments, "global_batch_size": int(batch.last)})
        values, derived = {**again}, {**more, **derived}
    segment = schema.Segment(
        launch=schema.Launch.model_validate({**values, "derived": derived, "arguments": builder.arguments}),
        records=builder.records,
        first=_record(builder.first),
        last=_record(builder.last),
        timers_s=builder.timers.statistics(builder.timer_lows),
        validation=builder.validation,
        metrics={**builder.metrics.statistics(), **builder.steps.statistics()},
        figures=builder.figures,
        section=builder.section,
        lines=schema.Lines(first=builder.line, last=builder.last_line),
    )
    _fill_steps(segment, builder)
    _fill_rates(segment, builder)
    _fill_memory(segment, builder)
    segment.end = _end(builder)
    return segment


def _fill_steps(segment: schema.Segment, builder: Builder) -> None:
    if not builder.records:
        return
    first, last = builder.first, builder.last
    warm = [first.iteration] if builder.records > 1 and first is not None and first.iteration is not None else []
    segment.steps = schema.Steps(
        count=builder.records,
        first=first.iteration if first else None,
        last=last.iteration if last else None,
        total=builder.total,
        left_out=warm,
        why="first record of the launch is warm-up" if warm else None,
    )
    cumulative = builder.skipped_total
    skipped = builder.skipped if cumulative is None else cumulative
    segment.skipped_iterations = None if skipped is None else int(skipped)
    losses = [name for name in segment.metrics if name in _LOSSES] or [n for n in segment.metrics if n.endswith("loss")]
    if losses:
        name = min(losses, key=lambda n: _LOSSES.index(n) if n in _LOSSES else len(_LOSSES))
        loss = segment.metrics[name]
        segment.loss = schema.Loss(name=name, first=loss.first, last=loss.last, min=loss.min)
    times = builder.steps.by_name.get("step_time_s")
    if times is not None:
        p10, median, p90 = times.quantiles(0.1, 0.5, 0.9)
        segment.step_time_s = schema.StepTime(
            median=median, mean=times.mean, mean_without_first=times.mean_without_first, p10=p10, p90=p90
        )
        sampled = "" if times.count <= times.limit else f"; quantiles from a sample of {times.limit}"
        segment.basis["step_time_s"] = (
            f"{times.count} records; mean_without_first leaves the first out as warm-up{sampled}"
        )


def _fill_rates(segment: schema.Segment, builder: Builder) -> None:
    """Samples/s and tokens/s: batch over time where both are printed, else what the log calls so."""
    time = segment.step_time_s
    seconds = (time.mean_without_first or time.mean) if time else None
    batch = builder.steps.by_name.get("global_batch_size")
    size = batch.mean_without_first or batch.mean if batch else segment.launch.global_batch_size
    printed = builder.steps.by_name.get("samples_per_s") or builder.steps.by_name.get("running_avg_samples_per_s")
    if seconds and size:
        segment.samples_per_s = size / seconds
        segment.basis["samples_per_s"] = "global batch size / step time, first record left out"
    elif printed:
        segment.samples_per_s = printed.mean_without_first or printed.mean
        segment.basis["samples_per_s"] = "mean of what the log prints, first record left out"
    elif overall := builder.metrics.by_name.get("samples_per_s"):
        segment.samples_per_s = overall.mean
        segment.basis["samples_per_s"] = "what the log states for the whole launch"
    tokens = builder.steps.by_name.get("tokens_per_s")
    length = segment.launch.sequence_length
    if tokens:
        segment.tokens_per_s = tokens.mean_without_first or tokens.mean
        segment.basis["tokens_per_s"] = "mean of what the log prints, first record left out"
    elif segment.samples_per_s and length:
        segment.tokens_per_s = segment.samples_per_s * length
        segment.basis["tokens_per_s"] = "samples per second * sequence length"
    elif overall := builder.metrics.by_name.get("tokens_per_s"):
        segment.tokens_per_s = overall.mean
        segment.basis["tokens_per_s"] = "what the log states for the whole launch"
    elif (each := builder.steps.by_name.get("tokens_per_s_per_gpu")) and segment.launch.world_size:
        segment.tokens_per_s = (each.mean_without_first or each.mean) * segment.launch.world_size
        segment.basis["tokens_per_s"] = "tokens per second and GPU * world size, first record left out"
    for streams in (builder.steps, builder.metrics):
        flops = streams.by_name.get("flops_per_gpu")
        if flops and segment.tflops_per_gpu is None:
            segment.tflops_per_gpu = (flops.mean_without_first or flops.mean) / 1e12
            segment.basis["tflops_per_gpu"] = "mean of what the log prints, first record left out"


def _fill_memory(segment: schema.Segment, builder: Builder) -> None:
    if builder.memory.by_name:
        segment.memory = schema.Memory(ranks=len(builder.memory_ranks), figures=builder.memory.statistics())
    candidates = {**(segment.memory.figures if segment.memory else {}), **segment.metrics}
    for name in (
        "max_allocated_bytes",
        "max_memory_allocated_bytes",
        "memory_bytes",
        "gpu_mem_bytes",
        "max_reserved_bytes",
    ):
        if name in candidates:
            segment.gpu_mem_max_bytes = candidates[name].max
            segment.basis["gpu_mem_max_bytes"] = f"largest {name} of all ranks and records"
            break
    _fill_memory_from_figures(segment)
    if segment.gpu_util_pct is None and "gpu_util_pct" in segment.metrics:
        segment.gpu_util_pct = segment.metrics["gpu_util_pct"].mean
        segment.basis["gpu_util_pct"] = "mean of all records"


def _fill_memory_from_figures(segment: schema.Segment) -> None:
    figure = segment.figures.get("gpu_mem_bytes")
    if figure is not None and figure.value is not None:
        segment.gpu_mem_max_bytes = figure.value
        segment.basis["gpu_mem_max_bytes"] = f"stated: {figure.text}"
    utilisation = segment.figures.get("gpu_util_pct")
    if utilisation is not None:
        segment.gpu_util_pct = utilisation.value
        segment.basis["gpu_util_pct"] = f"stated: {utilisation.text}"


def _end(builder: Builder) -> schema.End:
    if builder.end is not None:
        return schema.End(state=builder.end.state, reason=builder.end.reason)
    last = builder.last
    if builder.total and last is not None and last.iteration is not None and last.iteration >= builder.total:
        return schema.End(state="finished", reason=f"iteration {last.iteration} of {builder.total} was printed")
    return schema.End()


def _says_something(arguments: dict[str, Any]) -> bool:
    """A command without one known setting (`srun --label date`) is no launch."""
    return any(value is not None for value in normalise(arguments)[0].values())


class Segments:
    """Feed it records; it opens, fills and closes segments."""

    def __init__(self) -> None:
        self.done: list[schema.Segment] = []
        self.current: Builder | None = None
        self.section: str | None = None
        self.dropped = 0

    def add(self, record: Record) -> None:
        kind = record.kind
        builder = self.current
        if kind == "step":
            if builder is None or builder.runs_backwards(record):
                builder = self._open(record, keep=builder)
            builder.step(record)
        elif kind == "launch":
            self._launch(record)
            return
        elif kind == "end":
            if builder is not None:
                self._ended(builder, record.data)
        else:
            if builder is None:
                builder = self._open(record)
            self._note(builder, record)
        if builder is not None and record.line:
            builder.last_line = record.line

    def _note(self, builder: Builder, record: Record) -> None:
        if record.kind == "timers":
            builder.time(record)
        elif record.kind == "memory":
            builder.remember(record)
        elif record.kind == "metrics":
            builder.metrics.add(record.values)
            if record.rank is not None:
                builder.metrics.spoke(record.rank, record.values)
        elif record.kind == "validation" and len(builder.validation) < MAX_VALIDATIONS:
            builder.validation.append(
                schema.Validation(iteration=record.iteration, line=record.line, values=record.values)
            )

    @staticmethod
    def _ended(builder: Builder, end: Ending) -> None:
        known = builder.end
        if (
            known is None
            or known.state == "finished"
            or (known.reason.startswith("Traceback") and end.state == "crashed")
        ):
            builder.end = end

    def _launch(self, record: Record) -> None:
        builder = self.current
        if builder is None or self._another(builder, record):
            builder = self._open(record)
        builder.tell(record.data, dump=record.opens)
        builder.last_line = record.line or builder.last_line

    @staticmethod
    def _another(builder: Builder, record: Record) -> bool:
        """Tell whether arguments belong to another launch than the open one."""
        if not record.opens:
            return False
        known = builder.arguments
        other = builder.dumped and any(known.get(name, value) != value for name, value in record.data.items())
        return not builder.empty or other or builder.end is not None

    def _open(self, record: Record, keep: Builder | None = None) -> Builder:
        """Close what is open and start a segment; a restart without a new dump keeps the arguments."""
        self.close()
        self.current = Builder(record.line, self.section)
        if keep is not None:
            self.current.arguments = dict(keep.arguments)
        return self.current

    def close(self) -> None:
        builder, self.current = self.current, None
        if builder is None or (builder.empty and not _says_something(builder.arguments)):
            return
        if len(self.done) >= MAX_SEGMENTS:
            self.dropped += 1
            return
        self.done.append(builder.finish())

    def heading(self, title: str) -> None:
        """A new section of a document: what follows is a launch of its own."""
        self.close()
        self.section = title

    def adopt(self, figures: dict[str, list[schema.Figure]]) -> None:
        """Give a document's only launch all its figures, and the settings that only prose names."""
        if len(self.done) != 1:
            return
        segment = self.done[0]
        for name, stated in figures.items():
            segment.figures.setdefault(name, stated[0])
        prose = {name: figure.value for name, figure in segment.figures.items() if figure.value is not None}
        values, derived = normalise({**prose, **segment.launch.arguments})
        for name, value in values.items():
            if getattr(segment.launch, name) is None and value is not None:
                setattr(segment.launch, name, value)
                segment.launch.derived[name] = derived.get(name, "stated in prose")
        _fill_memory_from_figures(segment)

    def figure(self, name: str, figure: schema.Figure) -> None:
        """A figure that prose near the open launch states."""
        if self.current is not None and len(self.current.figures) < MAX_NAMES:
            self.current.figures.setdefault(name, figure)
