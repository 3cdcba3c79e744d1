"""A results directory of DeepSpeed's autotuner as one file: an uncompressed tar of the files that its reader uses."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from parlab.formats.tools import autotuning

MAX_TUNER_FILE = 2**20


def pack_tuner_files(files: Mapping[str, Path], target: Path) -> None:
    """Pack {relative path: file} into `target`. The same files give the same bytes, whatever directory they are in."""
    with tarfile.open(target, "x:", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            data = files[name].read_bytes()[:MAX_TUNER_FILE]
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def read_tuner_files(path: Path) -> dict[str, str]:
    """Read a packed results directory: {relative path: text}."""
    files: dict[str, str] = {}
    with tarfile.open(path, "r:") as archive:
        for entry in archive:
            stream = archive.extractfile(entry) if entry.isreg() else None
            if stream is not None and autotuning.wanted(entry.name):
                files[entry.name] = stream.read(MAX_TUNER_FILE).decode("utf-8", "replace")
    return files
