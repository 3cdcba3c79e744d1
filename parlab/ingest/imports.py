"""Files that people bring -> an experiment with runs, series, tables and findings; each file once, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any, NamedTuple

from django.contrib.auth.models import User

from parlab.formats.schema import Document, Finding
from parlab.lab.models import Experiment, Source


class Refused(ValueError):
    """A file that is not imported; the message says why and what to do."""


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


def source_import(
    *,
    experiment: Experiment | None,
    name: str,
    stream: IO[bytes],
    user: User,
    format: str | None = None,
    dry_run: bool = False,
) -> Import:
    """Import one file: a log's launches or a document's results become runs of the experiment, or of a new one.

    The same bytes twice in one experiment change nothing; without an experiment the one that has them already
    is found. Raises Refused for what cannot be imported; then nothing is stored.
    """
    raise NotImplementedError
