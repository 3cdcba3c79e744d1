"""Files that the ranks of own engines write, such as traces: pieces -> file -> analysis.

A piece is written at its offset before its batch is committed, so that a piece that comes twice changes nothing. A
complete file is renamed after the commit and analysed by a task of its own, which takes seconds.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from django.conf import settings
from django.db import transaction

from parlab.ingest.summaries.traces import trace_import
from parlab.lab.models import Attempt
from parlab.lab.services import stored_files
from parlab.traces.chunks import BadTrace
from runners.wire.protocol import FilePiece

_TRACE = re.compile(r"trace-rank(\d{1,7})\.json\.gz")
_COMPLETE = re.compile(r"(\d+)-(\d+)-(\d+)")
_PART = ".part"

logger = logging.getLogger(__name__)


def pieces_store(*, attempt: Attempt, pieces: Sequence[FilePiece], world_size: int) -> None:
    """Store pieces of files of an attempt; what is no trace of one of its ranks is left out.

    Raises no error for a wrong piece: the batches of other runs are stored in the same transaction.
    """
    for piece in pieces:
        match = _TRACE.fullmatch(piece.name)
        if match is None or int(match[1]) != piece.rank or piece.rank >= world_size:
            logger.warning("attempt %s: file %s of rank %s was left out", attempt.pk, piece.name, piece.rank)
        elif piece.size > settings.UPLOAD_LIMIT_MIB << 20:
            logger.warning("attempt %s: %s has more than %s MiB", attempt.pk, piece.name, settings.UPLOAD_LIMIT_MIB)
        else:
            _piece_store(attempt, piece)


def _piece_store(attempt: Attempt, piece: FilePiece) -> None:
    try:
        data = base64.b64decode(piece.data, validate=True)
    except binascii.Error as error:
        logger.warning("attempt %s: a piece of %s cannot be unpacked: %s", attempt.pk, piece.name, error)
        return
    if piece.offset + len(data) > piece.size:
        logger.warning("attempt %s: a piece of %s ends after its %s bytes", attempt.pk, piece.name, piece.size)
        return
    complete = _directory() / f"{attempt.run_id}-{attempt.number}-{piece.rank}"
    part = complete.with_suffix(_PART)
    part.touch(mode=0o600)
    with part.open("r+b") as file:
        file.seek(piece.offset)
        file.write(data)
    if piece.offset + len(data) == piece.size:
        transaction.on_commit(partial(_complete, part, complete), robust=True)


def _complete(part: Path, complete: Path) -> None:
    part.replace(complete)


def _directory() -> Path:
    path = stored_files.root() / stored_files.TRACES / "incoming"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def traces_take() -> int:
    """Analyse the complete traces that nodes have shipped and delete their files; return how many were stored."""
    count = 0
    for path in sorted(_directory().iterdir()):
        match = _COMPLETE.fullmatch(path.name)
        if match is None:
            continue
        run, number, rank = map(int, match.groups())
        attempt = Attempt.objects.filter(run_id=run, number=number).select_related("run").first()
        # An earlier attempt's trace does not replace that of the current one.
        if attempt is not None and attempt.number == attempt.run.attempt_number:
            try:
                with path.open("rb") as file:
                    trace_import(run=attempt.run, name=f"trace-rank{rank}.json.gz", file=file, user=None)
                count += 1
            except BadTrace as error:
                logger.warning("run %s: the trace of rank %s cannot be read: %s", run, rank, error)
        path.unlink(missing_ok=True)
    return count
