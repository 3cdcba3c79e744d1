"""What an import reads, beside the text itself: its numbers with their lines, the step as a bar, findings to judge."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from parlab.charts.format import DIGITS, SPACE, printed_digits, quantity, significant, unit_for
from parlab.charts.runs.rank_lanes import Lane, lane_bar, spans_of
from parlab.charts.runs.step_bar import HATCHED
from parlab.charts.svg import Svg
from parlab.formats.schema import Document, Finding
from parlab.formats.spans import Span
from parlab.ingest.files.choices import SEEN, choices_of, key_of
from parlab.ingest.files.outcome import stored_run, unchanged
from parlab.ingest.files.preview import Preview, PreviewRun, preview, preview_run
from parlab.ingest.readings.marked_text import MARKED_CHARACTERS, MarkedText, marked_text
from parlab.lab.models import Run, Source
from parlab.lab.selectors.figures import figure_title
from parlab.lab.selectors.sources import source_part

_SAME = 2e-3
LEGEND = (
    ("read", "read"),
    ("derived", "derived or checked"),
    ("average", "average"),
    ("contradiction", "contradiction"),
    ("unused", "not used"),
)


class Value(NamedTuple):
    """A number that becomes part of a run."""

    title: str
    text: str
    unit: str
    use: str
    source: str
    """`line 4`, `median of 24 steps`, `from 24 lines`, `derived`."""
    name: str
    """Joins it with its marks in the text."""


def source_text(source: Source, run: Run | None) -> ReadText | None:
    """Return what was read of a stored file, from the lines of a run on if one is named; None if it is no text."""
    first = run.first_line or 1 if run is not None and source.runs.count() > 1 else 1
    text = source_part(source, first, MARKED_CHARACTERS)
    if text is None:
        return None
    runs = [run] if run is not None else list(source.runs.order_by("number")[:2])
    shown = preview(unchanged(source), dry_run=False)
    shown.runs = [preview_run(stored_run(each)) for each in runs] if len(runs) == 1 else []
    marked = marked_text(
        text, name=source.name, format=source.format, lines=shown.lines, findings=shown.findings, first=first
    )
    return read_text(shown, marked, {})


class Choosable(NamedTuple):
    """A finding with what can be taken."""

    finding: Finding
    key: str
    place: str
    options: list[tuple[str, str]]
    """Name of the number, and the words of its button."""
    chosen: str


class ReadText(NamedTuple):
    marked: MarkedText | None
    legend: list[tuple[str, str, int]]
    numbers: int
    steps: int
    """Steps that the marked text states; 0 if it states none, or is only a beginning."""
    values: list[Value]
    bar: Svg | None
    bar_note: str
    bar_keys: list[tuple[str, str]]
    findings: list[Choosable]


def read_text(preview: Preview, marked: MarkedText | None, chosen: Mapping[str, str]) -> ReadText:
    """Return what is shown of a file; `chosen` has the choices that a person has made so far."""
    run = preview.runs[0] if len(preview.runs) == 1 else None
    counts = marked.counts if marked else {}
    legend = [(use, title, counts[use]) for use, title in LEGEND if counts.get(use)]
    bar, note, keys = _bar(run) if run else (None, "", [])
    return ReadText(
        marked,
        legend,
        sum(count for use, count in counts.items() if use != "unused"),
        len({span.value for span in marked.spans if span.use == "step"}) if marked and marked.is_whole else 0,
        _values(run, marked) if run else [],
        bar,
        note,
        keys,
        [_choosable(finding, chosen) for finding in preview.findings],
    )


def marked_preview(text: str, preview: Preview, document: Document | None = None) -> MarkedText:
    """Mark the text of a file that was read."""
    launches = [segment.launch for segment in document.segments] if document else []
    return marked_text(
        text,
        name=preview.name,
        format=preview.format,
        lines=preview.lines,
        findings=preview.findings,
        launch=launches[0] if len(launches) == 1 else None,
    )


def _values(run: PreviewRun, marked: MarkedText | None) -> list[Value]:
    memory = [span.name for span in marked.spans if span.name.endswith("_bytes")] if marked else []
    losses = [span.name for span in marked.spans if span.name.endswith("loss")] if marked else []
    rows: list[tuple[str, str, float | None, str, Sequence[str]]] = [
        ("Step time", "step_time_s", run.step_time_s, "s", ("step_time_s",)),
        ("Throughput", "samples_per_s", run.samples_per_s, "samples/s", ("samples_per_s",)),
        ("Tokens", "tokens_per_s", run.tokens_per_s, "tokens/s", ("tokens_per_s",)),
        ("Tokens per GPU", "tokens_per_s_per_gpu", run.tokens_per_s_per_gpu, "tokens/s", ("tokens_per_s_per_gpu",)),
        ("Compute per GPU", "tflops_per_gpu", run.flops_per_gpu, "FLOP/s", ("flops_per_gpu",)),
        ("MFU", "mfu_pct", run.mfu_pct, "%", ("mfu_pct", "mfu")),
        ("Loss", "loss", run.loss_last, "", losses),
        ("Peak memory", "memory", run.memory_max_bytes, "B", memory),
    ]
    values = [_value(title, run, key, value, unit, names, marked) for title, key, value, unit, names in rows if value]
    values = [_from_first(value, run) for value in values] + _printed(marked)
    values += _sizes(run, {value.name for value in values})
    values += [_step(run, marked)] if run.steps else []
    shown = {value.name for value in values} | ({"mfu"} if run.mfu_pct else set())
    figures = {name: text for name, text in run.figures.items() if name not in shown}
    return values + [_parted(figure_title(name), text, _kind(run, name), "", name) for name, text in figures.items()]


_PRINTED = (
    ("Learning rate", "learning_rate", ""),
    ("Batch", "global_batch_size", "samples"),
)
"""Further numbers that a person looks for: title, name and unit."""


def _sizes(run: PreviewRun, known: Collection[str]) -> list[Value]:
    """Return the sizes of a launch, as far as no number of the text is shown for them."""
    sizes = (("GPUs", "world_size", "", run.gpus), ("Batch", "global_batch_size", "samples", run.global_batch_size))
    return [
        Value(title, f"{size:,}", unit, _kind(run, name), "derived" if _kind(run, name) == "derived" else "", name)
        for title, name, unit, size in sizes
        if size and name not in known
    ]


def _printed(marked: MarkedText | None) -> list[Value]:
    """Return the last of these numbers that the text prints."""
    values = []
    for title, name, unit in _PRINTED if marked else ():
        if stated := marked.of(name) if marked else []:
            last = stated[-1]
            text = last.text if "e" not in last.text.lower() else f"{last.value:.4g}"
            values.append(Value(title, text, last.unit or unit, "read", f"line {last.line}", name))
    return values


def _step(run: PreviewRun, marked: MarkedText | None) -> Value:
    """Return the last step with the planned ones; of a longer text than is marked, how many steps it has."""
    stated = [span for span in marked.spans if span.use == "step" and span.value is not None] if marked else []
    total = next((span.value for span in marked.spans if span.use == "total" and span.value), None) if marked else None
    if not stated or not marked or not marked.is_whole:
        return Value("Steps", f"{run.steps:,}", "", "read", "", "step")
    last = max(stated, key=lambda span: span.value or 0)
    text = f"{last.value:,.0f}" + (f" of {total:,.0f}" if total else "")
    return Value("Last step", text, "", "read", f"line {last.line}", "step")


def _parted(title: str, text: str, use: str, source: str, name: str) -> Value:
    """Return a value whose unit stands apart from its number."""
    number, _, unit = text.partition(SPACE)
    return Value(title, number, unit, use, source, name)


def _from_first(value: Value, run: PreviewRun) -> Value:
    """Write a loss from its first value to its last one."""
    if value.title != "Loss" or run.loss_first is None or run.loss_first == run.loss_last:
        return value
    ends = (quantity(number, "", printed_digits(number, "")) for number in (run.loss_first, run.loss_last))
    return value._replace(text=" → ".join(ends))


def _kind(run: PreviewRun, key: str) -> str:
    kind = run.kinds.get(key, "")
    return {"derived": "derived", "": "read", "part": "read"}.get(kind, "average")


def _value(
    title: str, run: PreviewRun, key: str, value: float, unit: str, names: Sequence[str], marked: MarkedText | None
) -> Value:
    stated = marked.of(*names) if marked else []
    same = [span for span in stated if span.value and abs(span.value - value) <= _SAME * abs(value)]
    use = _kind(run, key)
    text = quantity(value, unit, DIGITS if use == "derived" and key.endswith("_per_s") else printed_digits(value, unit))
    name = (same or stated)[-1].name if stated else key
    if use == "derived":
        return _parted(title, text, use, "derived", name)
    is_one = key in ("loss", "memory") or len(stated) == 1 or (key == "step_time_s" and run.timed_steps == 1)
    if same and is_one:
        return _parted(title, _as_printed(same[-1], unit), use, f"line {same[-1].line}", same[-1].name)
    several = f"median of {run.timed_steps:,} steps" if key == "step_time_s" and run.timed_steps > 1 else ""
    return _parted(title, text, use, several or (f"from {len(stated)} lines" if len(stated) > 1 else ""), name)


def _as_printed(span: Span, unit: str) -> str:
    """Write a number as its line does; without a printed unit, in that of its name."""
    if "e" in span.text.lower() or (not span.unit and unit not in ("", "samples/s", "tokens/s")):
        return quantity(span.value, unit, printed_digits(span.value, unit))
    return f"{span.text}{SPACE}{span.unit or unit}".removesuffix(SPACE)


def _bar(run: PreviewRun) -> tuple[Svg | None, str, list[tuple[str, str]]]:
    """Draw the timers of a step as a bar; nested timers, whose sum is more than the step, make none."""
    if not run.step_time_s or not run.timers_s or sum(run.timers_s.values()) > 1.02 * run.step_time_s:
        return None, "", []
    spans = spans_of(run.timers_s, run.step_time_s)
    if len(spans) < 2:
        return None, "", []
    unit = unit_for([run.step_time_s], "s")
    drawn = lane_bar(Lane(0, "", run.step_time_s, spans), run.step_time_s, unit, 32.0)
    keys = [(span.fill.replace("f", "b", 1) if span.fill != HATCHED else HATCHED, span.name) for span in spans]
    return drawn, f"{unit.name} of {significant(run.step_time_s / unit.factor)}", keys


def _plain(value: float) -> str:
    """Write a number without a unit, as the message of a finding does beside it."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else significant(value, printed_digits(value))


def _choosable(finding: Finding, chosen: Mapping[str, str]) -> Choosable:
    key = key_of(finding)
    options = [(name, f"Take {_plain(value)}") for name, value in choices_of(finding.numbers)]
    lines = finding.lines
    place = f"Line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines[:3]))}." if lines else ""
    return Choosable(finding, key, place, options or [(SEEN, "OK")], chosen.get(key, ""))
