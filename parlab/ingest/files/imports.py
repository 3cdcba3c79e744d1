"""Import files into an experiment: runs, series, tables and findings. Each file once, all files or none.

An import is a line of four steps, each a function of the value that the step before it returns:
received (delivery.py) -> readings (reading.py) -> drafts of runs (drafts.py) -> stored (stored.py).

Stores of other trackers (MLflow, W&B, ...) take the same line, but their readings are runs already. `parlab.tracking`,
which is above this package, reads and keeps them: callers pass its `stores_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from django.contrib.auth.models import User

from parlab.ingest.files import stored
from parlab.ingest.files.delivery import Delivery, delivery_of, received_results, received_source, received_upload
from parlab.ingest.files.drafts import draft_of
from parlab.ingest.files.outcome import Import, ImportedRun, unchanged, would_make
from parlab.ingest.files.previous_imports import earlier
from parlab.ingest.files.reading import Progress, read
from parlab.ingest.files.received import PictureLookup, Refused
from parlab.ingest.files.requested_format import wanted_format, wanted_of
from parlab.ingest.files.stored import Target, TrackerStore
from parlab.ingest.files.workspace import Workspace, open_workspace
from parlab.lab.models import Experiment, Source
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services.access.quotas import QuotaExceeded, quota_check
from parlab.lab.services.access.rights import project_of

__all__ = [
    "Import",
    "ImportedRun",
    "Refused",
    "results_import",
    "source_reingest",
    "stores_import",
    "upload_import",
]

MARKED_FILES = 50
"""Files of an archive whose text a page can show with what was read in it."""
StoreReader = Callable[[Mapping[str, Path]], Sequence[TrackerStore]]
"""Finds the stores of other trackers among files, {path: file}. Raises Refused for one that is damaged or empty."""


def upload_import(
    *,
    experiment: Experiment | None,
    name: str,
    stream: IO[bytes],
    user: User,
    format: str | None = None,
    dry_run: bool = False,
    pictures: PictureLookup | None = None,
    progress: Progress | None = None,
    stores_of: StoreReader | None = None,
) -> list[Import]:
    """Import an uploaded file, or an archive whose files go into one experiment, all of them or none.

    If `stores_of` finds stores of other trackers in it, only these are imported. A results directory of DeepSpeed's
    autotuner is one import. Pictures in an archive are stored with the pages that refer to them; `pictures` looks up
    those of a single page. Without an experiment, the one that already contains the file is used, or a new one is
    created. The same bytes twice in one experiment change nothing. Raises Refused with the file and the reason; then
    nothing is stored. A file that has grown continues its runs (earlier.py).
    """
    target = Target(experiment, user, wanted_format(format))
    with open_workspace() as workspace:
        upload = received_upload(stream, name, workspace)
        try:
            project = home_project_id() if experiment is None else project_of(experiment)
            quota_check(owner=user.pk, project=project, added=upload.file.size)
        except QuotaExceeded as problem:
            raise Refused(str(problem)) from problem
        stores = stores_of(upload.members) if stores_of and target.format is None else []
        if stores:
            return stores_import(stores=stores, target=target, dry_run=dry_run, progress=progress)
        return _import(delivery_of(upload, workspace, pictures), workspace, target, dry_run, progress)


def stores_import(
    *, stores: Sequence[TrackerStore], target: Target, dry_run: bool = False, progress: Progress | None = None
) -> list[Import]:
    """Import the runs of other trackers, all or none. Without an experiment, each goes into the one that it names."""
    if dry_run:
        return [expected for store in stores for expected in store.expected(target)]
    return stored.store_runs(stores, target, progress)


def results_import(
    *,
    experiment: Experiment | None,
    name: str,
    files: Mapping[str, Path],
    user: User,
    dry_run: bool = False,
) -> Import:
    """Import a results directory of DeepSpeed's autotuner, {relative path: file}, as one source."""
    with open_workspace() as workspace:
        delivery = received_results(files, name, workspace)
        return _import(delivery, workspace, Target(experiment, user), dry_run)[0]


def source_reingest(*, source: Source) -> Import:
    """Rebuild the runs, series, tables and findings of a source from its bytes. Repeating it changes nothing."""
    with open_workspace() as workspace:
        delivery = received_source(source, workspace)
        [reading] = read(delivery, wanted_of(source), workspace)
        return stored.rebuild(source, draft_of(reading, workspace))


def _import(
    delivery: Delivery, workspace: Workspace, target: Target, dry_run: bool, progress: Progress | None = None
) -> list[Import]:
    if sources := stored.sources_of(delivery.files, target.experiment):
        return [unchanged(source) for source in sources]
    readings = read(delivery, target.format, workspace, progress)
    drafts = [draft_of(reading, workspace) for reading in readings]
    if dry_run:
        return [
            would_make(
                draft,
                target.experiment,
                earlier(draft.reading.received, target.experiment),
                has_beginning=number < MARKED_FILES,
            )
            for number, draft in enumerate(drafts)
        ]
    return stored.store(drafts, target)
