"""What an import created or would create, as plain data for the preview page and the API response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from parlab.formats.schema import Finding, Image, UnreadLine
from parlab.ingest.files.drafts import LEARNT
from parlab.ingest.files.outcome import Import, ImportedRun
from parlab.ingest.files.previous_imports import Change
from parlab.ingest.readings.results import PAGES
from parlab.lab.selectors.figures import stated

MAX_RUNS = 500
"""Maximum number of runs in the list; `run_count` counts all of them."""


Status = Literal["would import", "imported", "would continue", "continued", "already there"]
_STATUS: Mapping[Change, tuple[Status, Status]] = {
    "new": ("would import", "imported"),
    "changed": ("would import", "imported"),
    "continued": ("would continue", "continued"),
    "none": ("already there", "already there"),
}
"""Change -> status in a dry run, status after the import."""


class PreviewRun(BaseModel):
    """One run and its headline numbers, in SI units."""

    number: int | None
    label: str
    state: str
    reason: str
    steps: int
    step_time_s: float | None = None
    timed_steps: int = 0
    """Steps of which the step time is the median, without warm-up."""
    gpus: int | None = None
    global_batch_size: int | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    flops_per_gpu: float | None = None
    mfu_pct: float | None = None
    memory_max_bytes: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    figures: dict[str, str] = {}
    """Further figures that the file states, by their names in the file."""
    kinds: dict[str, str] = {}
    """How a figure came about that is not printed as such: derived, average, smoothed, part."""
    timers_s: dict[str, float] = {}
    """Median seconds of the timers, by name."""


class PreviewTable(BaseModel):
    title: str
    columns: list[str]
    rows: int


class PreviewUnread(BaseModel):
    """Lines that could not be read: their number, and the first of them."""

    lines: int
    examples: list[UnreadLine]


class Preview(BaseModel):
    """What the import of one file created or would create."""

    name: str
    status: Status
    version: int
    """2 and more: a changed version of a file that the experiment contains; the runs of earlier versions stay."""
    format: str
    lines: int
    experiment: str | None
    """Slug of the experiment; null if a new one would be created."""
    experiment_name: str
    source: int | None
    run_count: int
    runs: list[PreviewRun]
    tables: list[PreviewTable]
    figures: int
    images: list[Image]
    configurations: int
    findings: list[Finding]
    unread: PreviewUnread
    notes: list[str] = []
    """What to know before the numbers, such as a large part of the file that could not be read."""
    learnt: str = ""
    """Name and version of the learnt format that the file was read with."""
    is_doubtful: bool = False
    """Whether no format fits well: the lines are only read by the names in them, or many are unread."""


class Imports(BaseModel):
    """What an upload created or would create: one entry per file; an archive contains several."""

    imports: list[Preview]


def preview(result: Import, *, dry_run: bool) -> Preview:
    """Shape one result of upload_import."""
    document = result.document
    return Preview(
        name=result.name,
        status=_STATUS[result.change][0 if dry_run else 1],
        version=result.version,
        format=document.format,
        lines=document.lines,
        experiment=result.experiment.slug if result.experiment else None,
        experiment_name=result.experiment_name,
        source=result.source.pk if result.source else None,
        run_count=len(result.runs),
        runs=[preview_run(run) for run in result.runs[:MAX_RUNS]],
        tables=[
            PreviewTable(title=table.title or table.section or "", columns=table.columns, rows=len(table.rows))
            for table in document.tables
        ],
        figures=sum(len(stated) for stated in document.figures.values()),
        images=document.images,
        configurations=len(document.configs),
        findings=result.findings,
        unread=PreviewUnread(lines=document.unread.lines, examples=document.unread.examples),
        notes=document.notes,
        learnt=next((run.summary[LEARNT] for run in result.runs if LEARNT in run.summary), ""),
        is_doubtful=bool(document.notes) and document.format not in PAGES,
    )


_SIZES = frozenset({"world_size", "global_batch_size"})


def preview_run(run: ImportedRun) -> PreviewRun:
    """Shape a run with its headline numbers."""
    summary = run.summary
    step_time: Mapping[str, Any] = summary.get("step_time_s") or {}
    memory: Mapping[str, Any] = summary.get("memory_peak_bytes") or {}
    loss: Mapping[str, Any] = summary.get("loss") or {}
    tflops = summary.get("tflops_per_gpu")
    derived: Mapping[str, str] = run.launch.get("derived") or {}
    timers: Mapping[str, Mapping[str, Any]] = summary.get("timers_s") or {}
    return PreviewRun(
        number=run.number,
        label=run.label,
        state=run.state,
        reason=run.reason,
        steps=run.steps,
        step_time_s=step_time.get("median", step_time.get("mean")),
        gpus=run.launch.get("world_size"),
        global_batch_size=run.launch.get("global_batch_size"),
        timed_steps=(summary.get("steps") or {}).get("count", 0),
        samples_per_s=summary.get("samples_per_s"),
        tokens_per_s=summary.get("tokens_per_s"),
        tokens_per_s_per_gpu=summary.get("tokens_per_s_per_gpu"),
        flops_per_gpu=tflops * 1e12 if tflops else None,
        mfu_pct=summary.get("mfu_pct"),
        memory_max_bytes=memory.get("max"),
        loss_first=loss.get("first"),
        loss_last=loss.get("last"),
        figures=stated(summary),
        kinds=(summary.get("kinds") or {}) | dict.fromkeys(_SIZES & derived.keys(), "derived"),
        timers_s={name: timer["median"] for name, timer in timers.items() if "median" in timer},
    )
