"""Uploaded files, stored on disk between preview and import so that they are uploaded once. Deleted after a day."""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from django.conf import settings
from django.core.files.uploadedfile import TemporaryUploadedFile, UploadedFile
from pydantic import BaseModel, ValidationError

from parlab.ingest.files.preview import Preview
from parlab.ingest.files.received import display_name
from parlab.ingest.readings.guesses import Guess

KEEP_S = 86_400
_KEY = re.compile(r"[0-9a-f]{32}\Z")
_FACTS = "upload.json"


class File(BaseModel):
    """A file of an upload, with its previews or its error."""

    name: str
    size: int
    previews: list[Preview] = []
    """Expected results, or actual results after the import; an archive contains several files."""
    refused: str = ""
    format: str = ""
    """The format that was chosen for this file, instead of the one for the upload."""
    first: list[Preview] = []
    """What the beginning of a large file contains, while the rest is read."""
    guess: Guess | None = None
    """The format that was guessed, if none of the known ones fits."""


class Upload(BaseModel):
    """Files that a user uploaded in one request."""

    key: str
    user: int
    experiment: int | None
    format: str
    files: list[File]
    choices: dict[str, str] = {}
    """What a person took of contradicting numbers: key of a finding -> name of a number."""
    is_done: bool = False
    work: Literal["", "preview", "import"] = ""
    """What is being done with the files; empty if nothing is."""

    @property
    def directory(self) -> Path:
        return uploads() / self.key

    def open(self, number: int) -> IO[bytes]:
        return (self.directory / str(number)).open("rb")

    def keep_text(self, number: int, member: int, text: str) -> None:
        """Keep the beginning of a file, or of one in an archive, as it was read."""
        (self.directory / f"{number}-{member}.txt").write_text(text, encoding="utf-8", newline="")

    def texts(self, number: int) -> list[int]:
        """Return the members of a file, which is an archive or has one, of which the beginning was kept."""
        count = len(self.files[number].previews)
        return [member for member in range(count) if (self.directory / f"{number}-{member}.txt").exists()]

    def text(self, number: int, member: int) -> str:
        with (self.directory / f"{number}-{member}.txt").open(encoding="utf-8", newline="") as stream:
            return stream.read()

    def save(self) -> None:
        """Write the metadata atomically: a killed server leaves either the old or the new version."""
        draft = self.directory / f".{_FACTS}-{secrets.token_hex(4)}"
        draft.write_text(self.model_dump_json(), encoding="utf-8")
        draft.replace(self.directory / _FACTS)

    def finish(self) -> None:
        """Delete the uploaded files, and keep the results of their import."""
        self.is_done = True
        self.save()
        for number in range(len(self.files)):
            (self.directory / str(number)).unlink(missing_ok=True)
            for text in self.directory.glob(f"{number}-*.txt"):
                text.unlink(missing_ok=True)

    def discard(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def uploads() -> Path:
    """Return the upload directory. It also holds temporary upload files, so that large files are moved, not copied."""
    return Path(settings.FILE_UPLOAD_TEMP_DIR)


def upload_keep(files: Sequence[UploadedFile[Any]], *, user: int, experiment: int | None, format: str) -> Upload:
    """Store uploaded files until they are imported. Raises OSError, for example if the disk is full."""
    forget_old()
    upload = Upload(
        key=secrets.token_hex(16),
        user=user,
        experiment=experiment,
        format=format,
        files=[File(name=display_name(file.name or ""), size=file.size or 0) for file in files],
    )
    upload.directory.mkdir(mode=0o700, parents=True)
    try:
        for number, file in enumerate(files):
            _keep(file, upload.directory / str(number))
        upload.save()
    except BaseException:
        upload.discard()
        raise
    return upload


def _keep(file: UploadedFile[Any], target: Path) -> None:
    if isinstance(file, TemporaryUploadedFile):
        shutil.move(file.temporary_file_path(), target)
        return
    with target.open("wb") as copy:
        for chunk in file.chunks():
            copy.write(chunk)


def upload_find(key: str, *, user: int) -> Upload | None:
    """Return an upload of a user; None if it was deleted or belongs to another user."""
    if not _KEY.match(key):
        return None
    try:
        upload = Upload.model_validate_json((uploads() / key / _FACTS).read_text(encoding="utf-8"))
    except (OSError, ValidationError, json.JSONDecodeError):
        return None
    return upload if upload.user == user else None


@contextmanager
def upload_claimed(key: str, *, user: int) -> Iterator[Upload | None]:
    """Lock an upload. A second caller waits, then reads the result of the first. A killed server releases it."""
    upload = upload_find(key, user=user)
    try:
        lock = (upload.directory / ".lock").open("a") if upload else None
    except FileNotFoundError:
        lock = None  # discarded in the meantime
    if lock is None:
        yield None
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield upload_find(key, user=user)


def forget_old() -> None:
    """Delete uploads that were not imported within a day, and leftovers of a killed server."""
    before = time.time() - KEEP_S
    uploads().mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in uploads().iterdir():
        try:
            if path.stat().st_mtime > before:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        except FileNotFoundError:
            continue
