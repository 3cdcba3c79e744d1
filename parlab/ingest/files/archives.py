"""Uploaded archives -> files on disk: no path leaves the directory, sizes are limited, archives do not nest."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import zstandard

from parlab.ingest.files.received import BLOCK, HEAD_BYTES, Received, Refused, display_name, kind_of

MAX_MEMBERS = 10_000
MAX_RATIO = 250
"""Logs compress to between a tenth and a fiftieth of their size; a larger ratio indicates a decompression bomb."""
RATIO_FROM = 32 << 20
"""Unpacked size from which the ratio is checked."""
_MAX_DEPTH = 20
_MAX_READ = 16 << 20
KINDS = ("gzip", "bzip2", "xz", "zstd", "zip", "tar")
_DAMAGED = (
    zipfile.BadZipFile, zstandard.ZstdError, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError,
    RuntimeError, NotImplementedError, ValueError, OverflowError, MemoryError,
)  # fmt: skip


def is_archive(received: Received) -> bool:
    return received.kind in KINDS


def unpack_plain(packed: list[Any], directory: str, limit: int) -> dict[str, str]:
    """Unpack in a child of `ingest.confined`: the header of an archive may claim any memory."""
    path, *described = packed
    members = unpack(Received(Path(path), *described), Path(directory), limit=limit)
    return {name: str(member) for name, member in members.items()}


def unpack(received: Received, directory: Path, *, limit: int) -> dict[str, Path]:
    """Unpack an archive or a compressed file into a directory, under generated names: {path in the archive: file}.

    Raises Refused, with the member and the reason, for paths outside the archive, links, devices, encrypted members,
    nested archives, more than `limit` bytes in total, and a ratio of more than MAX_RATIO.
    """
    budget = _Budget(received, limit)
    try:
        if received.kind == "zip":
            return dict(_unzip(received, directory, budget))
        source = received.path
        if received.kind != "tar":
            source = directory / "unpacked"
            with closing(_decompressed(received)) as packed:
                head = _copy(packed, source, budget)
            inner = kind_of(head)
            if inner != "tar":
                _check_not_nested(received.name, head)
                return {_without_suffix(received.name): source}
            budget = _Budget(received, limit)
        return dict(_untar(source, directory, budget))
    except Refused:
        raise
    except _DAMAGED as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise Refused(f"{received.name} could not be unpacked: {problem.strerror}") from problem
        raise Refused(f"{received.name} is a damaged archive ({problem}); pack it again") from problem


def _decompressed(received: Received) -> IO[bytes]:
    modules = {"gzip": gzip, "bzip2": bz2, "xz": lzma, "zstd": zstandard}
    return cast(IO[bytes], modules[received.kind].open(received.path, "rb"))


class _Budget:
    """The size to which an archive may still unpack."""

    def __init__(self, received: Received, limit: int) -> None:
        self._name, self._packed, self._limit = received.name, max(received.size, 1), limit
        self._total = 0

    def take(self, size: int) -> None:
        self._total += size
        if self._total > self._limit:
            raise Refused(
                f"{self._name} unpacks to more than {self._limit >> 20} MiB, the limit for imports;"
                " import its files one by one, or raise PARLAB_UPLOAD_LIMIT_MIB"
            )
        if self._total > RATIO_FROM and self._total > MAX_RATIO * self._packed:
            raise Refused(
                f"{self._name} unpacks to more than {MAX_RATIO} times its size, which suggests a decompression bomb;"
                " import the files themselves"
            )


def _copy(source: IO[bytes], target: Path, budget: _Budget) -> bytes:
    """Copy a member and return its first bytes."""
    head = b""
    with target.open("xb") as file:
        while block := source.read(BLOCK):
            budget.take(len(block))
            head += block[: HEAD_BYTES - len(head)]
            file.write(block)
    return head


def _unzip(received: Received, directory: Path, budget: _Budget) -> Iterator[tuple[str, Path]]:
    with zipfile.ZipFile(received.path) as archive:
        entries = archive.infolist()
        _check_count(received.name, len(entries))
        for number, entry in enumerate(entries):
            mode = entry.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise Refused(f"{_label(entry.filename)} in {received.name} is a link or a device; pack files only")
            name = _safe_path(entry.filename, received.name)
            if entry.is_dir() or name is None:
                continue
            if entry.flag_bits & 1:
                raise Refused(f"{_label(name)} in {received.name} is encrypted; pack it without a password")
            target = directory / f"member-{number}"
            with archive.open(entry) as source:
                _check_not_nested(f"{_label(name)} in {received.name}", _copy(source, target, budget))
            yield name, target


def _untar(path: Path, directory: Path, budget: _Budget) -> Iterator[tuple[str, Path]]:
    with path.open("rb") as file, tarfile.open(fileobj=_Guarded(file), mode="r:") as archive:
        for number, entry in enumerate(archive):
            _check_count(path.name, number)
            name = _safe_path(entry.name, "the archive")
            if entry.isdir():
                continue
            if not entry.isreg():
                raise Refused(f"{_label(entry.name)} in the archive is a link or a device; pack files only")
            source = archive.extractfile(entry)
            if name is None or source is None:
                continue
            target = directory / f"member-{number}"
            with source:
                _check_not_nested(f"{_label(name)} in the archive", _copy(source, target, budget))
            yield name, target


class _Guarded:
    """A file that limits the size of a single read, because tarfile reads as much as a header claims into memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _safe_path(name: str, archive: str) -> str | None:
    """Check the path of a member; None for hidden files, except for the repositories of Aim."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
        raise Refused(f"{_label(name)} in {archive} has a path outside the archive; pack it with relative paths")
    if len(path.parts) > _MAX_DEPTH:
        raise Refused(f"{_label(name)} in {archive} is more than {_MAX_DEPTH} folders deep; pack it with fewer levels")
    hidden = any((part.startswith(".") and part != ".aim") or part == "__MACOSX" for part in path.parts)
    return None if hidden or not path.parts else path.as_posix()


def _check_count(name: str, count: int) -> None:
    if count > MAX_MEMBERS:
        raise Refused(f"{name} contains more than {MAX_MEMBERS:,} files; import it in parts")


def _check_not_nested(name: str, head: bytes) -> None:
    if kind_of(head) in KINDS:
        raise Refused(f"{name} is a nested archive; unpack it and import its files")


def _without_suffix(name: str) -> str:
    stem = PurePosixPath(name)
    return stem.stem if stem.suffix in (".gz", ".bz2", ".xz", ".zst") else name


def _label(name: str) -> str:
    return display_name(name.replace("\\", "/").rstrip("/"))
