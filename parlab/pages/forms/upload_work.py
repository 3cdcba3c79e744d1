"""Reads the files of an upload: small ones at once, large ones in a thread that reports its progress to the page."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from io import BytesIO
from typing import IO

from django.contrib.auth.models import User
from django.db import connections
from pydantic import BaseModel, ValidationError

from parlab.ingest.files.choices import findings_choose
from parlab.ingest.files.imports import Refused, upload_import
from parlab.ingest.files.preview import Preview, preview
from parlab.ingest.files.received import kind_of
from parlab.ingest.readings.guesses import upload_guess
from parlab.lab.models import Experiment
from parlab.pages.forms import uploads
from parlab.pages.forms.uploads import File, Upload
from parlab.tracking.imports import stores_of

logger = logging.getLogger(__name__)

AT_ONCE_BYTES = 4 * 2**20
"""Uploads up to this size are read within the request."""
FIRST_BYTES, GUESS_BYTES = 256 * 2**10, 2 * 2**20
"""Of a large log, what is shown at once, and what a format is guessed from if the former does not suffice."""
_PROGRESS = "progress.json"
_LOCK = ".working"
_EVERY_S = 0.25
_READING_SHARE = 0.9
"""The rest of the time goes into compressing and storing."""


class Progress(BaseModel):
    file: str
    number: int
    share: float
    """Of all bytes, from 0 to 1."""
    elapsed_s: float

    @property
    def percent(self) -> int:
        return int(100 * self.share)

    @property
    def left_s(self) -> float | None:
        """Return the remaining time in seconds; None at the beginning, where it cannot be told."""
        return self.elapsed_s * (1 - self.share) / self.share if self.share > 0.02 and self.elapsed_s > 1 else None


def upload_read(upload: Upload, user: User, *, dry_run: bool, only: Sequence[int] | None = None) -> None:
    """Preview or import the files of an upload; large ones continue in a thread, and `upload.work` is set meanwhile."""
    numbers = range(len(upload.files)) if only is None else only
    if sum(upload.files[number].size for number in numbers) <= AT_ONCE_BYTES:
        upload.work = ""
        _Work(upload, user, dry_run).run(numbers)
        _ended(upload, user, dry_run)
        return
    upload.work = "preview" if dry_run else "import"
    upload.save()
    claimed = threading.Event()
    # The context has who asks, and so which experiments are seen.
    arguments = (_thread, upload.key, user, dry_run, list(numbers), claimed)
    threading.Thread(target=copy_context().run, args=arguments, daemon=True, name=f"upload-{upload.key[:8]}").start()
    # The page that follows must see the claim, else it would report an interruption.
    claimed.wait()


def _thread(key: str, user: User, dry_run: bool, numbers: Sequence[int], claimed: threading.Event) -> None:
    upload = uploads.upload_find(key, user=user.pk)
    try:
        if upload is not None:
            with _claim(upload):
                claimed.set()
                _Work(upload, user, dry_run).run(numbers)
                upload.work = ""
                _ended(upload, user, dry_run)
    except FileNotFoundError:
        logger.info("upload %s was discarded while it was read", key)
    finally:
        claimed.set()
        connections.close_all()


def _ended(upload: Upload, user: User, dry_run: bool) -> None:
    if not dry_run and any(file.previews for file in upload.files):
        sources = [made.source for file in upload.files for made in file.previews if made.source is not None]
        findings_choose(sources=sources, choices=upload.choices, user=user)
        upload.finish()
    else:
        upload.save()


@contextmanager
def _claim(upload: Upload) -> Iterator[None]:
    """Hold a lock while the files are read; it ends with the process, however that ends."""
    with (upload.directory / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_working(upload: Upload) -> bool:
    """Return whether a thread reads the files at this moment."""
    if not upload.work:
        return False
    try:
        with (upload.directory / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def progress_of(upload: Upload) -> Progress | None:
    """Return how far the work is; None before the first report."""
    try:
        return Progress.model_validate_json((upload.directory / _PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValidationError, json.JSONDecodeError):
        return None


class _Work:
    """Reads the files one by one. A rejected file does not stop the others."""

    def __init__(self, upload: Upload, user: User, dry_run: bool) -> None:
        self.upload = upload
        self.user = user
        self.dry_run = dry_run
        self.began = time.monotonic()
        self.reported = 0.0
        self.done = 0
        self.total = 1

    def run(self, numbers: Sequence[int]) -> None:
        self.total = sum(self.upload.files[number].size for number in numbers) or 1
        key = self.upload.experiment
        target = None if key is None else Experiment.objects.filter(pk=key).first()
        for number in numbers:
            file = self.upload.files[number]
            file.previews, file.refused = [], ""
            if self.upload.experiment is not None and target is None:
                file.refused = "the experiment was deleted in the meantime; start again with another experiment"
                continue
            try:
                self._file(number, file, target)
            except Refused as error:
                file.refused = str(error)
            except OSError as error:
                logger.exception("upload %s file %d could not be read", self.upload.key, number)
                file.refused = disk_problem(error)
            self.done += file.size
            if self.dry_run:
                self._guess(number, file)

    def _file(self, number: int, file: File, target: Experiment | None) -> None:
        """Read one file; of a large one its beginning first, which the page shows meanwhile."""
        if file.size > AT_ONCE_BYTES and self.dry_run:
            with suppress(Refused):
                file.first = self._previews_of_file(_beginning(self.upload, number, FIRST_BYTES), number, file, target)
            self.upload.save()  # the guess of a format takes a second
            self._guess(number, file, FIRST_BYTES)
            self.upload.save()
        with self.upload.open(number) as stream:
            file.previews = self._previews_of_file(stream, number, file, target)

    def _previews_of_file(
        self, stream: IO[bytes] | None, number: int, file: File, target: Experiment | None
    ) -> list[Preview]:
        if stream is None:
            return []
        is_whole = not isinstance(stream, BytesIO)
        imports = upload_import(
            experiment=target,
            name=file.name,
            stream=stream,
            user=self.user,
            format=file.format or self.upload.format or None,
            dry_run=self.dry_run,
            progress=(lambda share: self._report(number, file, share)) if is_whole else None,
            stores_of=stores_of,
        )
        for member, document in enumerate(imports):
            if document.beginning:
                self.upload.keep_text(number, member, document.beginning)
        return [preview(document, dry_run=self.dry_run) for document in imports]

    def _guess(self, number: int, file: File, size: int = GUESS_BYTES) -> None:
        """Guess the format of a file that no known one fits."""
        shown = file.previews or file.first
        if (file.guess is not None and file.guess.learnt is not None) or (
            shown and not any(item.is_doubtful for item in shown)
        ):
            return
        stream = _beginning(self.upload, number, size)
        if stream is None:
            with self.upload.open(number) as whole:
                file.guess = upload_guess(stream=whole, name=file.name)
        else:
            file.guess = upload_guess(stream=stream, name=file.name)

    def _report(self, number: int, file: File, share: float) -> None:
        now = time.monotonic()
        if not self.upload.work or now - self.reported < _EVERY_S:
            return
        self.reported = now
        part = (self.done + share * file.size) / self.total
        progress = Progress(file=file.name, number=number, share=part * _READING_SHARE, elapsed_s=now - self.began)
        draft = self.upload.directory / f".progress-{secrets.token_hex(4)}"
        draft.write_text(progress.model_dump_json(), encoding="utf-8")
        draft.replace(self.upload.directory / _PROGRESS)


def _beginning(upload: Upload, number: int, size: int) -> BytesIO | None:
    """Return the first lines of a large text; None for another file."""
    with upload.open(number) as stream:
        head = stream.read(size)
        if not stream.read(1) or kind_of(head[: 64 * 1024]) != "text":
            return None
    return BytesIO(head[: head.rfind(b"\n") + 1] or head)


def beginning_text(upload: Upload, number: int) -> str | None:
    """Return the first characters of a text file for a page; None for an archive or another file."""
    try:
        with upload.open(number) as stream:
            head = stream.read(FIRST_BYTES + 1)
    except FileNotFoundError:
        return None
    return head.decode("utf-8", "replace") if kind_of(head[: 64 * 1024]) == "text" and b"\0" not in head else None


def disk_problem(error: OSError) -> str:
    """Describe an error of the server's disk, with the remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk of the server is full; no file was stored. Ask an administrator to free space, then try again."
    return f"The server could not store the files: {error.strerror or error}. Ask an administrator."
