"""A guess of the format of an upload that no reader defines."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import IO

from pydantic import BaseModel

from parlab.formats import UNKNOWN, format_of, head_of
from parlab.formats.documents.documents import GUESSED
from parlab.formats.learnt.learnt import Learnt, learn
from parlab.formats.source import Lines, open_text
from parlab.ingest.files.delivery import delivery_of, received_upload
from parlab.ingest.files.received import Received, Refused
from parlab.ingest.files.workspace import open_workspace

GUESS_LINES = 20_000


class Guess(BaseModel):
    """A guess, or the reason why there is none."""

    learnt: Learnt | None = None
    reason: str = ""


def upload_guess(*, stream: IO[bytes], name: str) -> Guess:
    """Guess the format of an upload; of an archive, by its first file of an unknown format."""
    with open_workspace() as workspace:
        try:
            delivery = delivery_of(received_upload(stream, name, workspace), workspace)
        except Refused as refusal:
            return Guess(reason=str(refusal))
        files = [file for file in delivery.files if file.kind == "text"]
        if not files:
            return Guess(reason=f"{name} contains no text; choose a log")
        file = next((file for file in files if _is_unknown(file)), files[0])
        with open_text(file.path) as text:
            try:
                return Guess(learnt=learn(islice(Lines(text), GUESS_LINES), Path(file.name).stem[:60] or "format"))
            except ValueError as problem:
                return Guess(reason=str(problem))


def _is_unknown(file: Received) -> bool:
    with open_text(file.path) as stream:
        return format_of(head_of(iter(Lines(stream)))) in {UNKNOWN, *GUESSED}
