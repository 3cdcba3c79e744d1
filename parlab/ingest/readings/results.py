"""The document of a file -> its results, each of which becomes a run. Pure.

A log has one result per launch. A page has one per row or cell of its result tables, one per section that measures a
launch, and one per section that only reports a failure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.formats.launch import normalise
from parlab.formats.schema import Document, Launch, Segment, Table
from parlab.ingest.files.recording import Recording
from parlab.ingest.readings.document_text import text_above, text_from
from parlab.ingest.readings.imported_summary import segment_summary, stated_summary, with_utilisation
from parlab.ingest.readings.launches import (
    Sections,
    fitting,
    resolved_of,
    runner_launch,
    staged_launch,
    with_prose_gpus,
)
from parlab.ingest.readings.result_tables import TableResult, is_tuning_summary, results_of
from runners.config import digest
from runners.wire.protocol import RunState

PAGES = ("markdown", "rst", "tables", "configuration")
TUNER = "deepspeed-autotuning"
UNKNOWN_END = "The log does not state how the launch ended."
WHOLE = -1
"""The segment index of a result that covers the whole file."""
_OOM = re.compile(r"(?i)\boom\b|out[ -]of[ -](?:\w+ )?(?:d?ram|memory)|cuda out of memory")
_ZERO = re.compile(r"(?i)\bzero[ -]?(?:stage[ -]?|s)?([0-3])\b")
_SCHEDULES = {"gpipe": "gpipe", "1f1b": "1f1b"}
# Names of figures that are measurements; other figures are descriptions.
_MEASURED = re.compile(
    r"^(?:ms_per_\w+|.*_?fps|.*(?:samples|tokens|steps|iterations|sequences)_per_s|gpu_util_pct|gpu_mem_bytes|mfu_pct"
    r"|(?:step|iteration|iter|epoch)_time_s|time_per_\w+_s|throughput\w*)$"
)
# Settings that distinguish the launches of a file, preferred first: (axis, normal name of a launch).
_AXES = (
    ("GPUs", "world_size"),
    ("train.micro_batch_size", "micro_batch_size"),
    ("train.global_batch_size", "global_batch_size"),
    ("model.sequence_length", "sequence_length"),
    ("parallel.tensor_parallel_size", "tensor_parallel_size"),
    ("parallel.pipeline_parallel_size", "pipeline_parallel_size"),
    ("parallel.data_parallel_size", "data_parallel_size"),
    ("parallel.zero_stage", "zero_stage"),
    ("train.precision", "precision"),
    ("model.num_layers", "num_layers"),
    ("model.hidden_size", "hidden_size"),
)


class Result(NamedTuple):
    """A result from which a run is built."""

    title: str
    """The heading above it; may be empty."""
    point: dict[str, Any]
    place: dict[str, int]
    lines: tuple[int, int] | None
    launch: Launch
    resolved: Sections
    summary: dict[str, Any]
    state: str
    reason: str
    segment: int | None = None

    @property
    def has_end(self) -> bool:
        """Whether the source states how the launch ended."""
        return self.reason != UNKNOWN_END


def results_in(document: Document, lines: Sequence[str], recordings: Mapping[int, Recording]) -> list[Result]:
    """Return the results of a document; `lines` are the lines of a page, empty for a log."""
    is_page = document.format in PAGES
    measured = [
        index
        for index, segment in enumerate(document.segments)
        if not is_page or index in recordings or _is_measured(segment)
    ]
    launches = [_segment_result(document.segments[n], n, recordings.get(n), is_page) for n in measured]
    results = _with_points(launches, document)
    if is_page or (document.format == TUNER and not results):
        base = _base_launch(document, measured)
        tables = _table_results(document, lines, base)
        results += tables
        results += _failed_sections(document, lines, base, {r.title for r in results}) if results else []
    if not results:
        results = _single_result(document, is_page)
    return _distinct(results)


def _is_measured(segment: Segment) -> bool:
    return segment.records > 0 or any(_MEASURED.match(name) for name in segment.figures)


def _segment_result(segment: Segment, index: int, recording: Recording | None, is_page: bool) -> Result:
    launch = _with_prose(staged_launch(runner_launch(segment.launch)), segment)
    resolved = resolved_of(launch)
    if segment.steps is not None and segment.end.state == "finished":
        resolved["train"] |= _whole("iterations", segment.steps.total or segment.steps.last)
    elif segment.steps is not None and "iterations" not in resolved["train"]:
        resolved["train"] |= _whole("iterations", segment.steps.total)
    state, reason = _ended(segment, is_page)
    lines = (segment.lines.first, segment.lines.last) if segment.lines else None
    summary = with_utilisation(segment_summary(segment, resolved, recording), resolved, launch)
    return Result(segment.section or "", {}, {"segment": index}, lines, launch, resolved, summary, state, reason, index)


def _whole(name: str, value: int | None) -> dict[str, int]:
    return {name: value} if value and value > 0 else {}


def _with_prose(launch: Launch, segment: Segment) -> Launch:
    """Use the batch size and the number of GPUs in the prose of a page, if no argument gives them."""
    gpus = segment.figures.get("num_gpus")
    if launch.world_size is None and gpus and gpus.value:
        launch = with_prose_gpus(launch, gpus)
    figure = segment.figures.get("batch_size")
    if launch.global_batch_size is None and figure and figure.value and figure.value == int(figure.value) > 0:
        return launch.model_copy(update={"global_batch_size": int(figure.value)})
    return launch


def _ended(segment: Segment, is_page: bool) -> tuple[str, str]:
    """Return the state and reason of a launch; one with an unknown end counts as finished, but pages do not say so."""
    end = segment.end
    reason = end.reason or ""
    if end.state == "crashed":
        return (RunState.OOM if _OOM.search(reason) else RunState.FAILED), reason
    if end.state == "cancelled":
        return RunState.CANCELLED, reason
    if end.state == "unknown" and not is_page and not _has_last_step(segment):
        return RunState.FINISHED, UNKNOWN_END
    return RunState.FINISHED, ""


def _has_last_step(segment: Segment) -> bool:
    """Return whether a launch printed the last of the steps that it states to have planned."""
    steps = segment.steps
    return bool(steps and steps.total and steps.last and steps.last >= steps.total)


def _with_points(results: Sequence[Result], document: Document) -> list[Result]:
    """Give each launch of a file its point: the one setting that distinguishes all, or all that vary."""
    if len(results) < 2:
        return list(results)
    values = {axis: [getattr(r.launch, name) for r in results] for axis, name in _AXES}
    varied = {axis: column for axis, column in values.items() if None not in column and len(set(column)) > 1}
    alone = next((axis for axis, column in varied.items() if len(set(column)) == len(results)), None)
    axes = [alone] if alone else list(varied)
    if document.format not in PAGES and not alone and len({r.title for r in results}) == len(results):
        return [r._replace(point={"experiment": r.title}) for r in results]
    return [r._replace(point={axis: varied[axis][n] for axis in axes}) for n, r in enumerate(results)]


def _base_launch(document: Document, measured: Sequence[int]) -> Launch:
    """Combine what a page states for all its results: prose, and launches without measurements."""
    prose = {name: f[0].value for name, f in document.figures.items() if f[0].value is not None and len(f) == 1}
    values, derived = normalise(prose)
    settings: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    arguments: dict[str, Any] = {}
    for index, segment in enumerate(document.segments):
        if index not in measured:
            launch = runner_launch(segment.launch)
            settings |= {name: value for name, value in launch.model_dump().items() if value is not None}
            arguments = {**launch.arguments, **arguments}
            derived |= launch.derived
    base = Launch.model_validate(settings | {"arguments": arguments, "derived": derived})
    stated = document.figures.get("num_gpus", [])
    if len({figure.value for figure in stated}) != 1 or base.world_size not in (None, stated[0].value):
        return base
    nodes = {figure.value for figure in document.figures.get("num_nodes", [])}
    return with_prose_gpus(base, stated[0], int(nodes.pop() or 0) if len(nodes) == 1 else None)


def _table_results(document: Document, lines: Sequence[str], base: Launch) -> list[Result]:
    table_results = [
        (index, table, results_of(table, text_above(lines, table.line - len(table.header) + 1)))
        for index, table in enumerate(document.tables)
        if document.format not in PAGES or not is_tuning_summary(table.columns)
    ]
    table_results = [(index, table, entries) for index, table, entries in table_results if entries]
    kinds = Counter(frozenset(entries[0].axes) for _, _, entries in table_results)
    results: list[Result] = []
    for index, table, entries in table_results:
        section_axis: dict[str, Any] = {}
        if kinds[frozenset(entries[0].axes)] > 1:
            section_axis = _section_axis(
                [t for _, t, e in table_results if frozenset(e[0].axes) == frozenset(entries[0].axes)], table
            )
        varied = _varied(entries)
        settings = {"parallel.schedule": schedule} if (schedule := _schedule(table.section)) else {}
        for entry in entries:
            point = section_axis | {axis: value for axis, value in entry.axes.items() if axis in varied}
            # A column with the same value in all results is not an axis, but still a setting of each result.
            shared = {axis: value for axis, value in entry.axes.items() if axis not in varied and "." not in axis}
            results.append(_table_result(index, table, entry, point, base, {**shared, **settings}))
    return results


def _varied(entries: Sequence[TableResult]) -> set[str]:
    """Return the axes on which the results of a table differ; all axes if there is a single result."""
    axes = {axis for entry in entries for axis in entry.axes}
    varied = {axis for axis in axes if len({repr(entry.axes.get(axis)) for entry in entries}) > 1}
    return varied or axes


def _section_axis(tables: Sequence[Table], table: Table) -> dict[str, Any]:
    """Return the axis that distinguishes tables with the same axes, which are parts of one sweep: their headings."""
    schedules = [_schedule(other.section) for other in tables]
    if all(schedules) and len(set(schedules)) == len(tables):
        return {"parallel.schedule": _schedule(table.section)}
    return {"section": table.title or table.section or f"line {table.line}"}


def _schedule(section: str | None) -> str | None:
    section_words = re.findall(r"[a-z0-9]+", (section or "").lower())
    schedules = {_SCHEDULES[word] for word in section_words if word in _SCHEDULES}
    return schedules.pop() if len(schedules) == 1 else None


def _table_result(
    index: int, table: Table, entry: TableResult, point: dict[str, Any], base: Launch, settings: Mapping[str, Any]
) -> Result:
    launch, fields = _with_settings(base, {**settings, **entry.settings})
    resolved = fitting({**_dotted(resolved_of(launch)), **fields})
    summary = with_utilisation(stated_summary(entry.measured, resolved, "as stated in the table"), resolved, launch)
    if entry.figures:
        summary["figures"] = entry.figures
    place = {"table": index, "row": entry.row} | ({} if entry.column is None else {"column": entry.column})
    lines = (entry.line, entry.line)
    return Result(table.section or "", point, place, lines, launch, resolved, summary, entry.state, entry.reason)


def _with_settings(base: Launch, settings: Mapping[str, Any]) -> tuple[Launch, dict[str, Any]]:
    """Override the settings of all results with those of one result, and drop what was derived from the former."""
    normal = {field.rpartition(".")[2]: value for field, value in settings.items() if type(value) in (int, str)}
    fields = {name: value for name, value in normal.items() if name in Launch.model_fields and name != "arguments"}
    # Values computed from sizes that this result may override are no longer valid.
    computed = {name for name, derivation in base.derived.items() if "*" in derivation or "/" in derivation}
    launch = base.model_dump(exclude=computed if fields else set())
    values = {name: value for name, value in {**launch, **fields}.items() if name != "arguments"}
    arguments = {**base.arguments, **{name: value for name, value in settings.items() if "." not in name}}
    derived = {name: text for name, text in base.derived.items() if name not in fields and name not in computed}
    try:
        own_launch = Launch.model_validate(values | {"arguments": arguments, "derived": derived})
    except ValueError:
        return base, dict(settings)
    return own_launch, {field: value for field, value in settings.items() if "." in field}


def _dotted(resolved: Sections) -> dict[str, Any]:
    return {f"{section}.{name}": value for section, fields in resolved.items() for name, value in fields.items()}


def _failed_sections(document: Document, lines: Sequence[str], base: Launch, existing_titles: set[str]) -> list[Result]:
    """Return a result for each section that only reports a failure."""
    filled = existing_titles | {table.section or "" for table in document.tables}
    results = []
    for figure in document.figures.get("failure", []):
        title = figure.section or ""
        if not title or title in filled:
            continue
        filled.add(title)
        zero = _ZERO.search(title)
        launch, fields = _with_settings(base, {"zero_stage": int(zero[1])} if zero else {})
        is_parallel = "data parallel" in title.lower() and launch.world_size
        fields |= {"parallel.data_parallel_size": launch.world_size} if is_parallel else {}
        reason = text_from(lines, figure.line) or figure.text
        state = RunState.OOM if _OOM.search(reason) or "DRAM" in reason else RunState.FAILED
        # Batch sizes and layouts of the other results of the page need not apply to this one.
        sizes = {
            f: value for f, value in _dotted(resolved_of(launch)).items() if f.startswith(("model.", "parallel.z"))
        }
        resolved = fitting({**sizes, **fields})
        where = (figure.line, figure.line)
        own_launch = Launch(world_size=launch.world_size)
        results.append(
            Result(title, {"section": title}, {"line": figure.line}, where, own_launch, resolved, {}, state, reason)
        )
    return results


def _single_result(document: Document, is_page: bool) -> list[Result]:
    """Return one result for a page or benchmark log that has figures, but neither result tables nor launches."""
    figures = {name: stated[0] for name, stated in document.figures.items()}
    if is_page and not any(_MEASURED.match(name) for name in figures):
        return []
    if not is_page and not (figures or document.tables):
        return []
    base = _base_launch(document, [])
    resolved = resolved_of(base)
    summary = segment_summary(Segment(figures=figures), resolved, None)
    place = {} if is_page else {"segment": WHOLE}
    segment = None if is_page else WHOLE
    return [Result("", {}, place, None, base, resolved, summary, RunState.FINISHED, "", segment)]


def _distinct(results: Sequence[Result]) -> list[Result]:
    """Number the results that share a point, because points are unique within a file."""
    counts = Counter(digest(result.point) for result in results)
    counts_so_far: Counter[str] = Counter()
    numbered = []
    for result in results:
        name = digest(result.point)
        counts_so_far[name] += 1
        axis = "launch" if result.segment is not None else "result"
        numbered.append(
            result._replace(point={**result.point, axis: counts_so_far[name]}) if counts[name] > 1 else result
        )
    return numbered
