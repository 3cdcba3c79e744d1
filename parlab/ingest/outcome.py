"""What an import made or would make, for those who asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parlab.formats.schema import Document, Finding
from parlab.ingest.reading import Reading
from parlab.ingest.received import visible
from parlab.ingest.results import Result
from parlab.lab.models import Experiment, Run, Source
from parlab.lab.services import storable
from parlab.lab.services.runs import point_label

NAME_LENGTH = 120


class ImportedRun(NamedTuple):
    """One run that an import made or would make."""

    number: int | None
    """Number within the experiment; None in a dry run."""
    label: str
    state: str
    reason: str
    point: Mapping[str, Any]
    steps: int
    """Iterations that its log holds; 0 for a cell of a table."""
    summary: Mapping[str, Any] = {}
    """Its numbers in the shape of a run's summary (docs/architecture.md); a preview shows its headlines."""


class Import(NamedTuple):
    """What an import made, or would make in a dry run."""

    name: str
    experiment: Experiment | None
    """None in a dry run without an experiment: it would be a new one named `experiment_name`."""
    experiment_name: str
    source: Source | None
    """None in a dry run of a file that is not there yet."""
    is_new: bool
    """False where the experiment had this very file already: nothing was changed."""
    document: Document
    runs: list[ImportedRun]
    findings: list[Finding]


def made(source: Source, document: Document, runs: list[Run], *, is_new: bool) -> Import:
    """Describe a stored source."""
    return Import(
        source.name,
        source.experiment,
        source.experiment.name,
        source,
        is_new,
        document,
        [_imported_run(run) for run in runs],
        document.findings,
    )


def unchanged(source: Source) -> Import:
    """Describe a source that was there already."""
    document = Document.model_validate(source.document)
    return made(source, document, list(source.runs.order_by("number")), is_new=False)


def _imported_run(run: Run) -> ImportedRun:
    steps = run.summary.get("steps") or {}
    return ImportedRun(
        run.number, run.label, run.state, run.reason, run.point, int(steps.get("count") or 0), run.summary
    )


def would_make(found: Reading, experiment: Experiment | None) -> Import:
    """Describe what a reading would become, with nothing stored."""
    runs = [_planned(result, found) for result in found.results]
    name = experiment.name if experiment else experiment_name(found)
    return Import(found.received.name, experiment, name, None, True, found.document, runs, found.document.findings)


def _planned(result: Result, found: Reading) -> ImportedRun:
    label = point_label(result.point) or result.title or found.received.name
    steps = result.summary.get("steps") or {}
    count = int(steps.get("count") or 0)
    return ImportedRun(None, label, result.state, result.reason, result.point, count, result.summary)


def experiment_name(found: Reading) -> str:
    """Name a new experiment after a page's first heading, or after the file."""
    name = " ".join(visible(storable.text(found.title.replace("\n", " "))).split())
    return (name or Path(found.received.name).stem or found.received.name)[:NAME_LENGTH]
