"""Directories of RocksDB: tables (.sst), write-ahead logs (.log) and the manifest that lists the live ones.

Read as RocksDB 6 writes them with its default options: block-based tables of format 4 or 5, Snappy or no compression,
CRC-32C, one column family. A directory is read as a stream in the order of keys: of the tables, one block each is in
memory, and the logs, which RocksDB limits to its write buffer. A log may end within a record, as after `kill -9`.
"""

from __future__ import annotations

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from parlab.formats.exports.crc32c import crc32c
from parlab.ingest.files.received import Refused

from .snappy import BadSnappy, uncompressed

_DELETION, _VALUE, _LOG_DATA, _SINGLE_DELETION, _NOOP, _RANGE_DELETION = 0, 1, 3, 7, 13, 15
_FOOTER_BYTES, _TRAILER_BYTES, _MAGIC = 53, 5, 0x88E241B785F4CFF7
_FORMATS = (4, 5)
_LOG_BLOCK, _LOG_HEADER, _LOG_HEADER_RECYCLED = 32_768, 7, 11
_MAX_BLOCK = 64 << 20
_LAST_SEQUENCE = (1 << 56) - 1
# Fields of the manifest: "v" is a number, "b" bytes with their length.
_EDITS = {1: "b", 2: "v", 3: "v", 4: "v", 5: "vb", 6: "vv", 9: "v", 10: "v", 200: "v", 201: "b", 202: "", 203: "v"}
_EDITS |= {7: "vvvbb", 100: "vvvbbvv", 102: "vvvvbbvv", 103: "vvvbbvv", 300: "v"}
_LOG_NUMBER, _DELETED_FILE, _NEW_FILE_4, _COLUMN_FAMILY, _SAFE_TO_IGNORE = 2, 6, 103, 200, 1 << 13

Version = tuple[bytes, int, int, bytes]
"""Key, negative sequence number (the newest first), kind and value."""


class _Table(NamedTuple):
    """A live table, and the first and the last of its keys, with their trailers."""

    number: int
    level: int
    smallest: bytes
    largest: bytes


class _Tombstone(NamedTuple):
    """A deletion of all keys from `start` up to, but not including, `end`."""

    start: bytes
    end: bytes
    sequence: int


def damaged(name: str, reason: str) -> Refused:
    """Return the error of a file that cannot be read."""
    return Refused(f"{name} is damaged ({reason}); copy the whole directory again")


def entries(files: Mapping[str, Path]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys of a database with their values, in order; `files` are those of its directory by name.

    Raises Refused.
    """
    tables, first_log = _live(files)
    tombstones: list[_Tombstone] = []
    logs = list(_logged(files, first_log, tombstones))
    logs.sort(key=itemgetter(0, 1))
    levels: dict[int, list[_Table]] = defaultdict(list)
    for table in tables:
        tombstones += _table_tombstones(_file(files, table), table)
        levels[table.level if table.level else -table.number].append(table)
    # The tables of a level do not overlap, except for those of level 0.
    streams: list[Iterable[Version]] = [logs]
    streams += [_chained(files, sorted(level, key=itemgetter(2))) for level in levels.values()]
    yield from _newest(heapq.merge(*streams, key=itemgetter(0, 1)), sorted(tombstones))


def _newest(versions: Iterable[Version], tombstones: list[_Tombstone]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the newest version of each key, unless it is deleted."""
    covering: list[tuple[int, bytes]] = []
    previous, at = None, 0
    for key, negative_sequence, kind, value in versions:
        if key == previous:
            continue
        previous = key
        while at < len(tombstones) and tombstones[at].start <= key:
            heapq.heappush(covering, (-tombstones[at].sequence, tombstones[at].end))
            at += 1
        while covering and covering[0][1] <= key:
            heapq.heappop(covering)
        if kind == _VALUE and not (covering and covering[0][0] < negative_sequence):
            yield key, value
        elif kind not in (_VALUE, _DELETION, _SINGLE_DELETION):
            raise Refused(f"the database uses records of kind {kind}, which parlab does not read")


def _file(files: Mapping[str, Path], table: _Table) -> Path:
    name = f"{table.number:06}.sst"
    if name not in files:
        raise Refused(f"{name} is missing; copy the whole directory again")
    return files[name]


def _chained(files: Mapping[str, Path], tables: list[_Table]) -> Iterator[Version]:
    for table in tables:
        yield from _table_versions(_file(files, table))


# --- manifest and logs -----------------------------------------------------------------------------------------------


def _live(files: Mapping[str, Path]) -> tuple[list[_Table], int]:
    """Return the tables of the current version, and the number of the oldest log that is not in them."""
    try:
        manifest = files["CURRENT"].read_text(encoding="ascii").strip()
        path = files[manifest]
    except (KeyError, ValueError) as problem:
        raise Refused("CURRENT or the manifest is missing; copy the whole directory again") from problem
    tables: dict[int, _Table] = {}
    first_log = 0
    for record in _log_records(path):
        edit = list(_edit_fields(_Cursor(record, manifest)))
        if any(tag == _COLUMN_FAMILY and values[0] for tag, values in edit):
            continue
        for tag, values in edit:
            if tag == _LOG_NUMBER:
                first_log = int(values[0])
            elif tag == _DELETED_FILE:
                tables.pop(int(values[1]), None)
            elif tag in (7, 100, 102, _NEW_FILE_4):
                smallest, largest = (value for value in values if isinstance(value, bytes))
                tables[int(values[1])] = _Table(int(values[1]), int(values[0]), smallest, largest)
    return list(tables.values()), first_log


def _edit_fields(cursor: _Cursor) -> Iterator[tuple[int, list[int | bytes]]]:
    while cursor.at < len(cursor.data):
        tag = cursor.number()
        if tag not in _EDITS:
            if not tag & _SAFE_TO_IGNORE:
                raise Refused(f"{cursor.name} has a record {tag}, which parlab does not read")
            cursor.bytes()
            continue
        yield tag, [cursor.number() if kind == "v" else cursor.bytes() for kind in _EDITS[tag]]
        if tag == _NEW_FILE_4:
            while cursor.number() != 1:
                cursor.bytes()


def _logged(files: Mapping[str, Path], first_log: int, tombstones: list[_Tombstone]) -> Iterator[Version]:
    """Yield the versions in the logs, and add their tombstones."""
    for name in sorted(files):
        stem, _, suffix = name.partition(".")
        if suffix != "log" or not stem.isdecimal() or int(stem) < first_log:
            continue
        for record in _log_records(files[name]):
            cursor = _Cursor(record, name)
            sequence = int.from_bytes(cursor.take(8), "little")
            cursor.take(4)
            while cursor.at < len(record):
                kind = cursor.take(1)[0]
                if kind == _LOG_DATA:
                    cursor.bytes()
                elif kind == _RANGE_DELETION:
                    tombstones.append(_Tombstone(cursor.bytes(), cursor.bytes(), sequence))
                    sequence += 1
                elif kind in (_DELETION, _SINGLE_DELETION, _VALUE):
                    yield cursor.bytes(), -sequence, kind, cursor.bytes() if kind == _VALUE else b""
                    sequence += 1
                elif kind != _NOOP:
                    raise Refused(f"{name} has records of kind {kind}, which parlab does not read")


def _log_records(path: Path) -> Iterator[bytes]:
    """Yield the whole records of a log or manifest, up to the first that is torn."""
    parts: list[bytes] = []
    with path.open("rb") as file:
        while True:
            left = _LOG_BLOCK - file.tell() % _LOG_BLOCK
            if left < _LOG_HEADER:
                file.seek(left, 1)
            header = file.read(_LOG_HEADER)
            if len(header) < _LOG_HEADER:
                return
            checksum, length, kind = struct.unpack("<IHB", header)
            is_recycled = 5 <= kind <= 8
            content = file.read(length + (_LOG_HEADER_RECYCLED - _LOG_HEADER) * is_recycled)
            if not 1 <= kind <= 8 or crc32c(header[6:] + content) != checksum:
                return
            kind -= 4 * is_recycled
            if (kind in (3, 4)) != bool(parts) or sum(map(len, parts)) > _MAX_BLOCK:
                return
            parts.append(content[4:] if is_recycled else content)
            if kind in (1, 4):
                yield b"".join(parts)
                parts = []


# --- tables ----------------------------------------------------------------------------------------------------------


def _table_versions(path: Path) -> Iterator[Version]:
    with path.open("rb") as file:
        index, _ = _footer(file, path.name)
        for handle in _index_handles(_block(file, index, path.name), path.name):
            for internal_key, value in _block_entries(_block(file, handle, path.name), path.name):
                key, sequence, kind = _split(internal_key, path.name)
                yield key, -sequence, kind, value


def _table_tombstones(path: Path, table: _Table) -> Iterator[_Tombstone]:
    """Yield the range deletions of a table; they hold within its own keys only."""
    first, (last, last_sequence, last_kind) = table.smallest[:-8], _split(table.largest, path.name)
    if (last_sequence, last_kind) != (_LAST_SEQUENCE, _RANGE_DELETION):
        last += b"\x00"  # the largest key itself is included
    with path.open("rb") as file:
        _, meta = _footer(file, path.name)
        for name, handle in _block_entries(_block(file, meta, path.name), path.name):
            if name != b"rocksdb.range_del":
                continue
            cursor = _Cursor(handle, path.name)
            block = _block(file, (cursor.number(), cursor.number()), path.name)
            for internal_key, end in _block_entries(block, path.name):
                key, sequence, _ = _split(internal_key, path.name)
                yield _Tombstone(max(key, first), min(end, last), sequence)


def _footer(file: BinaryIO, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the places of the index and of the index of metadata blocks."""
    size = file.seek(0, 2)
    if size < _FOOTER_BYTES:
        raise damaged(name, "too short")
    file.seek(-_FOOTER_BYTES, 2)
    footer = file.read(_FOOTER_BYTES)
    version, magic = struct.unpack_from("<IQ", footer, 41)
    if magic != _MAGIC:
        raise damaged(name, "its end is missing")
    if version not in _FORMATS or footer[0] != 1:
        raise Refused(f"{name} is a table of format {version}, checksum {footer[0]}; parlab reads 4 and 5 with 1")
    cursor = _Cursor(footer, name, at=1)
    meta = cursor.number(), cursor.number()
    return (cursor.number(), cursor.number()), meta


def _block(file: BinaryIO, handle: tuple[int, int], name: str) -> bytes:
    offset, size = handle
    if size > _MAX_BLOCK or offset >= 1 << 62:
        raise damaged(name, f"a block of {size} bytes")
    file.seek(offset)
    data = file.read(size + _TRAILER_BYTES)
    if len(data) < size + _TRAILER_BYTES or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise damaged(name, f"checksum of the block at byte {offset}")
    compression = data[size]
    if compression == 0:
        return data[:size]
    if compression != 1:
        raise Refused(f"{name} uses compression {compression}; parlab reads Snappy and uncompressed tables")
    try:
        return uncompressed(data[:size], _MAX_BLOCK)
    except BadSnappy as problem:
        raise damaged(name, str(problem)) from problem


def _index_handles(block: bytes, name: str) -> Iterator[tuple[int, int]]:
    """Yield offset and size of each data block; those of a shared key follow from the one before."""
    cursor = _entries_of(block, name)
    offset = size = 0
    while cursor.at < len(cursor.data):
        shared, own = cursor.number(), cursor.number()
        cursor.take(own)
        if shared:
            offset += size + _TRAILER_BYTES
            zigzag = cursor.number()
            size += (zigzag >> 1) ^ -(zigzag & 1)
        else:
            offset, size = cursor.number(), cursor.number()
        yield offset, size


def _block_entries(block: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    cursor = _entries_of(block, name)
    key = b""
    while cursor.at < len(cursor.data):
        shared, own, length = cursor.number(), cursor.number(), cursor.number()
        key = key[:shared] + cursor.take(own)
        yield key, cursor.take(length)


def _entries_of(block: bytes, name: str) -> _Cursor:
    """Return the entries of a block, without the restart points behind them."""
    restarts = int.from_bytes(block[-4:], "little") & 0x7FFF_FFFF
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise damaged(name, "a block without entries")
    return _Cursor(block[:end], name)


def _split(internal_key: bytes, name: str) -> tuple[bytes, int, int]:
    """Return user key, sequence number and kind."""
    if len(internal_key) < 8:
        raise damaged(name, "a key without its trailer")
    trailer = int.from_bytes(internal_key[-8:], "little")
    return internal_key[:-8], trailer >> 8, trailer & 0xFF


class _Cursor:
    """Reads numbers and bytes one after the other. Raises Refused where the data ends too early."""

    def __init__(self, data: bytes, name: str, at: int = 0) -> None:
        self.data, self.name, self.at = data, name, at

    def take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) < count:
            raise damaged(self.name, "a record ends too early")
        self.at += count
        return part

    def bytes(self) -> bytes:
        return self.take(self.number())

    def number(self) -> int:
        value = shift = 0
        while self.at < len(self.data) and shift < 64:
            byte = self.data[self.at]
            value |= (byte & 0x7F) << shift
            self.at, shift = self.at + 1, shift + 7
            if byte < 0x80:
                return value
        raise damaged(self.name, "a number ends too early")
