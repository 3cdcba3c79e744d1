"""Step 1 of an import: an upload, a results directory or a stored source -> the files to read, on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import zstandard
from django.conf import settings

from parlab.formats.tools import autotuning
from parlab.ingest.confined import Unreadable, confined
from parlab.ingest.files import archives
from parlab.ingest.files.images import MAX_PICTURE_BYTES
from parlab.ingest.files.received import PictureLookup, Received, Refused, copied, described, readable
from parlab.ingest.files.tuner_files import pack_tuner_files
from parlab.ingest.files.workspace import Workspace
from parlab.lab.models import Source


class Delivery(NamedTuple):
    """Files that arrive together and are imported into one experiment, all or none."""

    name: str
    """Name of the file or archive, safe to display."""
    files: Sequence[Received]
    refusals: Sequence[str] = ()
    """Why other files of the archive cannot be read."""


class Upload(NamedTuple):
    """An upload on our disk."""

    file: Received
    members: Mapping[str, Path]
    """The files of an archive by their path in it; otherwise the file itself."""


def received_upload(stream: IO[bytes], name: str, workspace: Workspace) -> Upload:
    """Receive one file, or an archive, which is unpacked. Raises Refused for what is damaged or too large."""
    limit = int(settings.UPLOAD_LIMIT_MIB) << 20
    file = copied(stream, name, workspace.new_path(), limit=limit)
    if not archives.is_archive(file):
        return Upload(file, {file.name: file.path})
    directory = workspace.new_path()
    directory.mkdir()
    members = _unpacked(file, directory, limit)
    if not members:
        raise Refused(f"{file.name} contains no files; pack the logs or pages into it")
    return Upload(file, members)


def _unpacked(file: Received, directory: Path, limit: int) -> dict[str, Path]:
    packed = [str(file.path), file.name, file.size, file.sha256, file.kind]
    try:
        members = confined("parlab.ingest.files.archives:unpack_plain", packed, str(directory), limit)
    except Unreadable as problem:
        raise Refused(str(problem)) from problem
    return {name: Path(path) for name, path in members.items()}


def delivery_of(upload: Upload, workspace: Workspace, pictures: PictureLookup | None = None) -> Delivery:
    """Return the files of an upload that are to be read. Raises Refused for a single file that cannot be read."""
    name, members = upload.file.name, upload.members
    if not archives.is_archive(upload.file):
        return Delivery(name, [readable(upload.file)._replace(pictures=pictures)])
    tuner_files = _tuner_files(members)
    if tuner_files:
        return received_results(tuner_files, Path(name).stem.removesuffix(".tar"), workspace)
    return _received_members(name, members, pictures)


def received_results(files: Mapping[str, Path], name: str, workspace: Workspace) -> Delivery:
    """Receive a results directory of DeepSpeed's autotuner, {relative path: file}, as a single file."""
    path = workspace.new_path()
    pack_tuner_files(files, path)
    results = described(path, name)
    return Delivery(results.name, [results])


def received_source(source: Source, workspace: Workspace) -> Delivery:
    """Receive the stored bytes of a source again. Raises Refused if they are damaged."""
    path = workspace.new_path()
    decompressor = zstandard.ZstdDecompressor()
    damaged = f"the stored bytes of {source.name} are damaged; import the file again"
    try:
        with path.open("xb") as file:
            for piece in raw_pieces(source):
                file.write(decompressor.decompress(piece))
    except zstandard.ZstdError as problem:
        raise Refused(damaged) from problem
    file_again = described(path, source.name)
    if file_again.sha256 != source.sha256:
        raise Refused(damaged)
    return Delivery(file_again.name, [file_again])


def raw_pieces(source: Source) -> Iterator[bytes]:
    """Yield the compressed pieces of a source's bytes, in order."""
    rows = source.chunks.order_by("position").values_list("data", flat=True)
    return (bytes(data) for data in rows.iterator(chunk_size=16))


def _received_members(name: str, members: Mapping[str, Path], pictures: PictureLookup | None) -> Delivery:
    """Describe the files of an archive. Scripts, pictures and empty files among them do not refuse the archive."""
    files: list[Received] = []
    refusals: list[str] = []
    for member, path in sorted(members.items()):
        beside = pictures if len(members) == 1 else _pictures_beside(member, members)
        try:
            files.append(readable(described(path, member))._replace(pictures=beside))
        except Refused as refusal:
            refusals.append(str(refusal))
    return Delivery(name, files, refusals)


def _tuner_files(members: Mapping[str, Path]) -> dict[str, Path]:
    """Return the files of an autotuner's results directory, at the top of an archive or in its only folder."""
    tops = {name.partition("/")[0] for name in members}
    prefix = f"{tops.pop()}/" if len(tops) == 1 and not autotuning.is_results(tops) else ""
    files = {name.removeprefix(prefix): path for name, path in members.items()}
    if not autotuning.is_results(name.partition("/")[0] for name in files):
        return {}
    return {name: path for name, path in files.items() if autotuning.wanted(name)}


def _pictures_beside(page: str, files: Mapping[str, Path]) -> PictureLookup:
    """Look pictures up in an archive by their path relative to a page."""

    def lookup(reference: str) -> bytes | None:
        parts = list(Path(page).parts[:-1])
        for part in reference.split("/"):
            if part == ".." and parts:
                parts.pop()
            elif part not in ("", ".", ".."):
                parts.append(part)
        path = files.get("/".join(parts))
        return path.read_bytes() if path and path.stat().st_size <= MAX_PICTURE_BYTES else None

    return lookup
