"""What an experiment already contains of a received file: all of it, its beginning, or another version of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

import zstandard
from django.db.models import Count, QuerySet

from parlab.ingest.files.delivery import raw_pieces
from parlab.ingest.files.received import BLOCK, Received
from parlab.lab.models import Experiment, Source

_GROWING = ("text", "events")
"""Kinds of files to which trainers append; a packed results directory changes in its middle."""


Change = Literal["new", "continued", "changed", "none"]
"""continued: a stored file has grown. changed: a further version of a stored file. none: nothing to store."""


class Earlier(NamedTuple):
    """What a received file changes, and the stored file that it is, continues or is another version of."""

    change: Change
    source: Source | None = None

    @property
    def version(self) -> int:
        """Return the version that the received file is, or belongs to."""
        if self.source is None:
            return 1
        return self.source.version + (self.change == "changed")


def earlier(file: Received, experiment: Experiment | None, besides: Iterable[int] = ()) -> Earlier:
    """Compare a file with the sources of an experiment, or of all if None; `besides` are keys of sources to ignore.

    A file counts as changed only within an experiment: without one, equal names of two files mean little.
    """
    sources = Source.objects.select_related("experiment").exclude(pk__in=list(besides))
    if experiment is not None:
        sources = sources.filter(experiment=experiment)
    same = sources.filter(sha256=file.sha256).first()
    if same is not None:
        return Earlier("none", same)
    if file.kind in _GROWING:
        if (source := _longer(file, sources)) is not None:
            return Earlier("none", source)
        if (source := _beginning(file, sources)) is not None:
            return Earlier("continued", source)
    if experiment is not None:
        previous = sources.filter(name=file.name).order_by("-version", "-pk").first()
        if previous is not None:
            return Earlier("changed", previous)
    return Earlier("new")


def _longer(file: Received, sources: QuerySet[Source]) -> Source | None:
    """Return the source of the same name that begins with the file: an older copy of what is stored."""
    for source in sources.filter(name=file.name, size__gt=file.size):
        if _digest_of_beginning(source, file.size) == file.sha256:
            return source
    return None


def _beginning(file: Received, sources: QuerySet[Source]) -> Source | None:
    """Return the longest source whose bytes are the beginning of the file.

    A source of another name counts only with runs, since a banner alone is the beginning of many logs.
    """
    shorter = sources.filter(size__lt=file.size).annotate(run_count=Count("runs"))
    candidates = list(shorter.order_by("-size", "-pk").values_list("pk", "size", "sha256", "name", "run_count"))
    digests = _digests(file.path, sorted({size for _, size, *_ in candidates}))
    for pk, size, sha256, name, run_count in candidates:
        if digests[size] == sha256 and (name == file.name or run_count):
            return sources.get(pk=pk)
    return None


def _digests(path: Path, sizes: Sequence[int]) -> dict[int, str]:
    """Return the SHA-256 of the first bytes of a file, by their number; `sizes` ascend."""
    digests: dict[int, str] = {}
    digest, position = hashlib.sha256(), 0
    with path.open("rb") as file:
        for size in sizes:
            while position < size and (block := file.read(min(BLOCK, size - position))):
                digest.update(block)
                position += len(block)
            digests[size] = digest.copy().hexdigest()
    return digests


def _digest_of_beginning(source: Source, size: int) -> str:
    """Return the SHA-256 of the first `size` stored bytes of a source; empty if they are damaged."""
    digest, decompressor = hashlib.sha256(), zstandard.ZstdDecompressor()
    with closing(raw_pieces(source)) as pieces:  # type: ignore[type-var]  # a generator, which has close()
        for piece in pieces:
            try:
                data = decompressor.decompress(piece)[:size]
            except zstandard.ZstdError:
                return ""
            digest.update(data)
            size -= len(data)
            if not size:
                return digest.hexdigest()
    return ""
