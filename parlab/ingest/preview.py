"""What an import made or would make, as plain data: for the page's preview and the API's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from parlab.formats.schema import Finding, Image, UnreadLine
from parlab.ingest.imports import Import, ImportedRun
from parlab.lab.selectors import stated

MAX_RUNS = 500
"""Runs that are listed one by one; the count is always that of all."""


class PreviewRun(BaseModel):
    """One run and its headline numbers, in SI units."""

    number: int | None
    label: str
    state: str
    reason: str
    steps: int
    step_time_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    memory_max_bytes: float | None = None
    figures: dict[str, str] = {}
    """What the file states beside these, under its own names."""


class PreviewTable(BaseModel):
    """The size of one table."""

    title: str
    columns: list[str]
    rows: int


class PreviewUnread(BaseModel):
    """What could not be read: how many lines, and the first of them."""

    lines: int
    examples: list[UnreadLine]


class Preview(BaseModel):
    """What an import of one file made or would make."""

    name: str
    status: Literal["would import", "imported", "already there"]
    format: str
    lines: int
    experiment: str | None
    """Slug of the experiment; null where a new one would be made."""
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


class Imports(BaseModel):
    """What an upload made or would make: one entry for each file; an archive holds several."""

    imports: list[Preview]


def preview(found: Import, *, dry_run: bool) -> Preview:
    """Shape one result of upload_import."""
    document = found.document
    status: Literal["would import", "imported", "already there"] = "would import" if dry_run else "imported"
    return Preview(
        name=found.name,
        status=status if found.is_new else "already there",
        format=document.format,
        lines=document.lines,
        experiment=found.experiment.slug if found.experiment else None,
        experiment_name=found.experiment_name,
        source=found.source.pk if found.source else None,
        run_count=len(found.runs),
        runs=[_run(run) for run in found.runs[:MAX_RUNS]],
        tables=[
            PreviewTable(title=table.title or table.section or "", columns=table.columns, rows=len(table.rows))
            for table in document.tables
        ],
        figures=sum(len(stated) for stated in document.figures.values()),
        images=document.images,
        configurations=len(document.configs),
        findings=found.findings,
        unread=PreviewUnread(lines=document.unread.lines, examples=document.unread.examples),
    )


def _run(run: ImportedRun) -> PreviewRun:
    summary = run.summary
    step_time: Mapping[str, Any] = summary.get("step_time_s") or {}
    memory: Mapping[str, Any] = summary.get("memory_peak_bytes") or {}
    return PreviewRun(
        number=run.number,
        label=run.label,
        state=run.state,
        reason=run.reason,
        steps=run.steps,
        step_time_s=step_time.get("median", step_time.get("mean")),
        samples_per_s=summary.get("samples_per_s"),
        tokens_per_s=summary.get("tokens_per_s"),
        memory_max_bytes=memory.get("max"),
        figures=stated(summary),
    )
