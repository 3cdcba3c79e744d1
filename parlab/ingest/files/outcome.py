"""What an import created, or would create in a dry run: the value that the import services return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from parlab.formats.schema import Document, Finding
from parlab.ingest.files.drafts import Draft
from parlab.ingest.files.previous_imports import Change, Earlier
from parlab.ingest.files.reading import Reading
from parlab.ingest.files.received import HEAD_BYTES, kind_of, visible
from parlab.ingest.readings.marked_text import MARKED_CHARACTERS
from parlab.ingest.readings.results import Result
from parlab.lab.models import Experiment, Run, Source
from parlab.lab.services import storable
from parlab.lab.services.runs import point_label

NAME_LENGTH = 120


class ImportedRun(NamedTuple):
    """A run that an import created or would create."""

    number: int | None
    """Number within the experiment; None in a dry run."""
    label: str
    state: str
    reason: str
    point: Mapping[str, Any]
    steps: int
    """Iterations that its log contains; 0 for a cell of a table."""
    summary: Mapping[str, Any] = {}
    """Its numbers, as in the summary of a run (docs/understand/architecture.md); previews show the headline numbers."""
    has_end: bool = True
    launch: Mapping[str, Any] = {}
    """The settings of its launch, as a formats.schema.Launch."""

    @property
    def shown_state(self) -> str:
        """The state as pages show it."""
        return Run.shown_state_of(self.state, has_end=self.has_end)


class Import(NamedTuple):
    """What an import created, or would create in a dry run."""

    name: str
    experiment: Experiment | None
    """None in a dry run without an experiment: a new one named `experiment_name` would be created."""
    experiment_name: str
    change: Change
    """How the file relates to what the experiment contained."""
    document: Document
    runs: list[ImportedRun]
    source: Source | None = None
    """None in a dry run of a file that is not stored yet, and for a store of another tracker."""
    version: int = 1
    """2 and more: a file of this name with another beginning was imported before; its runs stay."""
    beginning: str = ""
    """The first characters of a text that a dry run has read, for a page; of the first files of an archive."""

    @property
    def is_new(self) -> bool:
        """Return False if the experiment already contained the file: nothing was changed."""
        return self.change != "none"

    @property
    def findings(self) -> list[Finding]:
        return self.document.findings


def made(source: Source, document: Document, runs: Sequence[Run], change: Change) -> Import:
    """Describe a stored source."""
    return Import(
        name=source.name,
        experiment=source.experiment,
        experiment_name=source.experiment.name,
        change=change,
        document=document,
        runs=[stored_run(run) for run in runs],
        source=source,
        version=source.version,
    )


def unchanged(source: Source) -> Import:
    """Describe a source that was already stored."""
    document = Document.model_validate(source.document)
    return made(source, document, list(source.runs.order_by("number")), "none")


def would_make(draft: Draft, experiment: Experiment | None, before: Earlier, *, has_beginning: bool = False) -> Import:
    """Describe what a draft would become. Nothing is stored."""
    reading = draft.reading
    experiment = before.source.experiment if before.source else experiment
    runs = [_drafted_run(result, reading.received.name) for result in draft.results]
    name = experiment.name if experiment else experiment_name(reading)
    return Import(
        name=reading.received.name,
        experiment=experiment,
        experiment_name=name,
        change=before.change,
        document=reading.document,
        runs=runs,
        source=before.source if before.change in ("none", "continued") else None,
        version=before.version,
        beginning=_beginning(reading.text) if has_beginning else "",
    )


def _beginning(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(MARKED_CHARACTERS)
    return head.decode("utf-8", "replace") if kind_of(head[:HEAD_BYTES]) == "text" and b"\0" not in head else ""


def stored_run(run: Run) -> ImportedRun:
    return ImportedRun(
        run.number,
        run.label,
        run.state,
        run.reason,
        run.point,
        _steps(run.summary),
        run.summary,
        run.has_end,
        run.launch,
    )


def _drafted_run(result: Result, file: str) -> ImportedRun:
    label = point_label(result.point) or result.title or file
    steps = _steps(result.summary)
    return ImportedRun(
        None,
        label,
        result.state,
        result.reason,
        result.point,
        steps,
        result.summary,
        launch=result.launch.model_dump(),
    )


def _steps(summary: Mapping[str, Any]) -> int:
    return int((summary.get("steps") or {}).get("count") or 0)


def experiment_name(reading: Reading) -> str:
    """Name a new experiment after the first heading of a page, or after the file."""
    title = " ".join(visible(storable.text(reading.title.replace("\n", " "))).split())
    file = reading.received.name
    return (title or Path(file).stem or file)[:NAME_LENGTH]
