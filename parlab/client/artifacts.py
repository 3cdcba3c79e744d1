"""The methods of a run that log files: artifacts, images, tables, histograms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parlab.client import media, mending

log = logging.getLogger("parlab")


class FileLog:
    """Logs files under paths; a copy is kept until the server has it. No method raises."""

    def log_artifact(self, source: Any, path: str = "") -> None:
        """Keep a file, a directory or bytes as an artifact of the run, by default under the name of the file."""
        self._attempt("artifact", path or source, lambda: self._add_source(source, path))

    def log_image(self, name: str, image: Any, step: int | None = None) -> None:
        """Keep an image: a path, bytes, a figure of matplotlib, an image of PIL, an array or a tensor."""

        def add() -> None:
            content, suffix = media.picture(image)
            self._add_media("images", name, step, suffix, content)

        self._attempt("image", name, add)

    def log_table(self, name: str, rows: Any, columns: Sequence[Any] | None = None, step: int | None = None) -> None:
        """Keep a table as CSV: rows that are sequences or mappings, or a frame of pandas or polars."""
        self._attempt("table", name, lambda: self._add_media("tables", name, step, ".csv", media.table(columns, rows)))

    def log_histogram(self, name: str, values: Any, step: int | None = None, bins: int = media.BINS) -> None:
        """Keep the histogram of numbers, of an array or tensor, or of a pair (counts, edges)."""
        self._attempt(
            "histogram",
            name,
            lambda: self._add_media("histograms", name, step, ".json", media.histogram(values, bins)),
        )

    def _add_source(self, source: Any, path: str) -> None:
        if isinstance(source, (bytes, bytearray)):
            self._add_file(path or "artifact", bytes(source))
            return
        given = Path(source)
        if not given.is_dir():
            self._add_file(path or given.name, given)
            return
        for file in sorted(each for each in given.rglob("*") if each.is_file() and not each.is_symlink()):
            self._add_file(f"{path or given.name}/{file.relative_to(given).as_posix()}", file)

    def _add_media(self, kind: str, name: str, step: int | None, suffix: str, content: bytes) -> None:
        self._add_file(f"{kind}/{mending.text(name)}/{self._media_step(step)}{suffix}", content)

    def _attempt(self, kind: str, subject: Any, action: Callable[[], None]) -> None:
        """Do what may fail because of a value of the script."""
        try:
            action()
        except Exception as error:
            log.warning("%s %.80s is not recorded: %s", kind, mending.text(subject), mending.text(error))

    def _media_step(self, step: int | None) -> int:
        raise NotImplementedError

    def _add_file(self, path: str, content: bytes | Path) -> None:
        raise NotImplementedError
