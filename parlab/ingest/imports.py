"""Files that people bring -> an experiment with runs, series, tables and findings; each file once, all or nothing."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, NamedTuple

import zstandard
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from parlab.formats import autotuning
from parlab.ingest import archives, reading, stored
from parlab.ingest.archives import Member
from parlab.ingest.document_text import notes_of
from parlab.ingest.outcome import NAME_LENGTH, Import, ImportedRun, experiment_name, made, unchanged, would_make
from parlab.ingest.reading import Beside, Reading
from parlab.ingest.received import HEAD_BYTES, Received, Refused, display_name, kind_of, receive, what_is
from parlab.ingest.results import PAGES
from parlab.lab.models import Experiment, Source
from parlab.lab.services import experiment_create, findings_refresh, storable
from parlab.lab.services.configs import lock_experiment

__all__ = [
    "Import",
    "ImportedRun",
    "Refused",
    "results_import",
    "source_import",
    "source_reingest",
    "upload_import",
]

logger = logging.getLogger(__name__)


class _Wish(NamedTuple):
    """Who imports what into where, and how."""

    experiment: Experiment | None
    user: User
    format: str | None
    dry_run: bool
    beside: Beside | None = None


def source_import(
    *,
    experiment: Experiment | None,
    name: str,
    stream: IO[bytes],
    user: User,
    format: str | None = None,
    dry_run: bool = False,
    beside: Beside | None = None,
) -> Import:
    """Import one file: a log's launches or a document's results become runs of the experiment, or of a new one.

    The same bytes twice in one experiment change nothing; without an experiment the one that has them already
    is found. `beside` finds pictures that a page refers to. Raises Refused for what cannot be imported; then nothing
    is stored.
    """
    with _work_directory() as work:
        received = receive(stream, name, work / "received", limit=_limit())
        found = _unpacked(received, work)
        if not isinstance(found, Received):
            raise Refused(
                f"{received.name} holds {len(found)} files; import them one by one, or the whole as an upload"
            )
        return _import(found, work, _Wish(experiment, user, format, dry_run, beside))


def upload_import(
    *,
    experiment: Experiment | None,
    name: str,
    stream: IO[bytes],
    user: User,
    format: str | None = None,
    dry_run: bool = False,
) -> list[Import]:
    """Import what a person uploads: a file, or an archive whose files go into one experiment, all of them or none.

    A results directory of DeepSpeed's tuner is one import, and pictures of an archive belong to the pages that show
    them. Raises Refused, with the file and the reason.
    """
    with _work_directory() as work:
        received = receive(stream, name, work / "received", limit=_limit())
        found = _unpacked(received, work)
        wish = _Wish(experiment, user, format, dry_run)
        if isinstance(found, Received):
            return [_import(found, work, wish)]
        return _import_members(received.name, found, work, wish)


def results_import(
    *,
    experiment: Experiment | None,
    name: str,
    files: Mapping[str, Path],
    user: User,
    dry_run: bool = False,
) -> Import:
    """Import a results directory of DeepSpeed's tuner, {relative path: file}, as one source."""
    with _work_directory() as work:
        return _import(_packed_results(name, files, work), work, _Wish(experiment, user, None, dry_run))


def source_reingest(*, source: Source) -> Import:
    """Build the runs, series, tables and findings of a source again from its bytes; a second time changes nothing."""
    with _work_directory() as work, ExitStack() as stack:
        path = work / "received"
        decompressor = zstandard.ZstdDecompressor()
        with path.open("xb") as file:
            for piece in stored.raw_pieces(source):
                file.write(decompressor.decompress(piece))
        received = _received(path, source.name)
        if received.sha256 != source.sha256:
            raise Refused(f"the stored bytes of {source.name} are damaged: import the file again")
        found = reading.read(received, source.wanted_format or None, work, stack)
        with transaction.atomic():
            lock_experiment(source.experiment)
            source.format, source.document = found.document.format, stored.document_json(found)
            source.save(update_fields=["format", "document"])
            runs = stored.runs_store(source, found, source.created_by)
            stored.images_store(source, found, None)
            findings_refresh(experiment=source.experiment)
    return made(source, found.document, [entry.run for entry in runs], is_new=False)


@contextmanager
def _work_directory() -> Iterator[Path]:
    """A directory that goes with the import; a full disk there is said as such."""
    try:
        with TemporaryDirectory(prefix="parlab-import-") as directory:
            yield Path(directory)
    except OSError as problem:
        raise Refused(f"the file could not be taken in ({problem.strerror or problem}); free some space") from problem


def _limit() -> int:
    return int(settings.UPLOAD_LIMIT_MIB) << 20


def _unpacked(received: Received, work: Path) -> Received | list[Member]:
    """Return a file that can be read, or the several files of an archive."""
    if received.kind == "binary":
        with received.path.open("rb") as file:
            what = what_is(file.read(HEAD_BYTES))
        raise Refused(
            f"{received.name} is {what}, not text; import the log or page as text, or packed as zip or tar.gz"
        )
    if not archives.is_archive(received):
        return received
    directory = work / "archive"
    directory.mkdir()
    members = archives.unpack(received, directory, limit=_limit())
    if not members:
        raise Refused(f"{received.name} holds no files; pack the logs or pages into it")
    tuner = _tuner_files(members)
    if tuner:
        return _packed_results(Path(received.name).stem.removesuffix(".tar"), tuner, work)
    return _received(members[0].path, members[0].name) if len(members) == 1 else members


def _tuner_files(members: list[Member]) -> dict[str, Path]:
    """Find a results directory of DeepSpeed's tuner in an archive, at its top or in its only folder."""
    tops = {member.name.partition("/")[0] for member in members}
    prefix = f"{tops.pop()}/" if len(tops) == 1 and not autotuning.is_results(tops) else ""
    files = {member.name.removeprefix(prefix): member.path for member in members}
    if not autotuning.is_results(name.partition("/")[0] for name in files):
        return {}
    return {name: path for name, path in files.items() if autotuning.wanted(name)}


def _packed_results(name: str, files: Mapping[str, Path], work: Path) -> Received:
    path = work / "results.tar"
    reading.pack_tuner_files(files, path)
    return _received(path, name)


def _received(path: Path, name: str) -> Received:
    """Describe a file that is ours already; refuses what cannot be read."""
    digest, size, head = hashlib.sha256(), 0, b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            head, size = head or block[:HEAD_BYTES], size + len(block)
            digest.update(block)
    shown = display_name(name)
    if not head.strip(b"\x00 \t\r\n"):
        raise Refused(f"{shown} is empty; choose a file that holds output of a training")
    return Received(path, shown, size, digest.hexdigest(), kind_of(head))


def _import_members(name: str, members: list[Member], work: Path, wish: _Wish) -> list[Import]:
    """Import the files of an archive into one experiment; pictures go with the pages that show them."""
    by_name = {member.name: member.path for member in members}
    with ExitStack() as stack:
        readings: list[tuple[Reading, Beside]] = []
        refused = ""
        for number, member in enumerate(sorted(members)):
            directory = work / f"import-{number}"
            directory.mkdir()
            try:
                received = _received(member.path, member.name)
                if received.kind != "binary":
                    found = reading.read(received, wish.format, directory, stack)
                    readings.append((found, _beside(by_name, member.name)))
            except Refused as problem:
                # A script or an empty file beside the logs harms nobody.
                refused = str(problem)
        if not readings:
            raise Refused(f"{name} holds nothing that can be imported{f': {refused}' if refused else ''}")
        if wish.dry_run:
            return [would_make(found, wish.experiment) for found, _ in readings]
        return _store_all(readings, wish)


@transaction.atomic
def _store_all(readings: list[tuple[Reading, Beside]], wish: _Wish) -> list[Import]:
    imports: list[Import] = []
    for found, beside in readings:
        known = _known(found.received.sha256, wish.experiment)
        imports.append(unchanged(known) if known else _store(found, wish._replace(beside=beside)))
        wish = wish._replace(experiment=wish.experiment or imports[-1].experiment)
    return imports


def _beside(files: Mapping[str, Path], page: str) -> Beside:
    """Find pictures in an archive by their path relative to a page."""

    def find(reference: str) -> bytes | None:
        parts: list[str] = list(Path(page).parts[:-1])
        for part in reference.split("/"):
            if part == ".." and parts:
                parts.pop()
            elif part not in ("", ".", ".."):
                parts.append(part)
        path = files.get("/".join(parts))
        return path.read_bytes() if path and path.stat().st_size <= stored.MAX_PICTURE_BYTES else None

    return find


def _import(received: Received, work: Path, wish: _Wish) -> Import:
    known = _known(received.sha256, wish.experiment)
    if known is not None:
        return unchanged(known)
    with ExitStack() as stack:
        found = reading.read(received, wish.format, work, stack)
        if wish.dry_run:
            return would_make(found, wish.experiment)
        with transaction.atomic():
            return _store(found, wish)


def _known(sha256: str, experiment: Experiment | None) -> Source | None:
    sources = Source.objects.filter(sha256=sha256).select_related("experiment")
    return (sources if experiment is None else sources.filter(experiment=experiment)).first()


def _store(found: Reading, wish: _Wish) -> Import:
    if wish.experiment is None:
        # A second click must not make a second experiment: a person's imports without one pass one after the other.
        User.objects.select_for_update(no_key=True).get(pk=wish.user.pk)
    else:
        lock_experiment(wish.experiment)
    known = _known(found.received.sha256, wish.experiment)
    if known is not None:
        return unchanged(known)  # it was imported while we read
    experiment = wish.experiment or _new_experiment(found, wish.user)
    source = stored.source_store(experiment, found, wish.format, wish.user)
    runs = stored.runs_store(source, found, wish.user)
    stored.images_store(source, found, wish.beside)
    if found.document.format in PAGES:
        _notes_add(experiment, found)
    findings_refresh(experiment=experiment)
    logger.info("%s is imported into %s: %d runs", source.name, experiment, len(runs))
    return made(source, found.document, [entry.run for entry in runs], is_new=True)


def _new_experiment(found: Reading, user: User) -> Experiment:
    name = experiment_name(found)
    for count in range(2, 1_000):
        try:
            return experiment_create(name=name, owner=user, source=f"Imported from {found.received.name}.")
        except ValueError:
            name = f"{experiment_name(found)[: NAME_LENGTH - 6]} ({count})"
    raise Refused(
        f"there are a thousand experiments named {experiment_name(found)!r}; choose the experiment to import into"
    )


def _notes_add(experiment: Experiment, found: Reading) -> None:
    """Keep the text of a page as notes, behind what is there."""
    notes = storable.text(notes_of(found.lines, found.document))
    if not notes:
        return
    heading = f"From {found.received.name}:\n\n" if experiment.notes else ""
    experiment.notes = f"{experiment.notes}\n\n{heading}{notes}".strip()
    experiment.save(update_fields=["notes", "updated_at"])
