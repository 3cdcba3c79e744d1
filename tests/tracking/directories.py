"""Directories with stores of other trackers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from django.contrib.auth.models import User

from parlab.ingest.files import imports
from parlab.ingest.files.stored import Target
from parlab.lab.models import Experiment
from parlab.tracking.imports import stores_of


def files_below(directory: Path) -> dict[str, Path]:
    return {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}


def stores_import(
    *, files: Mapping[str, Path], user: User, experiment: Experiment | None = None, dry_run: bool = False
) -> list[imports.Import]:
    """Import the stores among files as `manage.py ingest` does for a directory."""
    return imports.stores_import(stores=stores_of(files), target=Target(experiment, user), dry_run=dry_run)
