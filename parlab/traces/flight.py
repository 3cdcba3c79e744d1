"""Dumps of NCCL's flight recorder (torch, TORCH_NCCL_TRACE_BUFFER_SIZE) -> collectives of a rank.

torch writes them as a pickle, or as JSON (`_dump_nccl_trace_json`): {"version", "pg_config", "entries": [...]}. The
operations of a pickle are checked before it is read, so that it cannot run anything, nor claim memory that its bytes do
not justify. Source: torch, FlightRecorder.hpp.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
from collections.abc import Mapping
from typing import IO, Any, NoReturn

from .chunks import BadTrace
from .events import LAUNCH, Message, Messages, Timeline
from .kinds import COMMUNICATION
from .reading import RankTrace
from .spool import Spool

MAX_BYTES = 256 << 20
_LARGEST = 1 << 62
"""Counts, sizes and times (ns) of torch are smaller."""
_NANO = 1e-9
_KEYS = (b'"entries"', b'"pg_config"')
_KINETO = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
"""A trace of torch.profiler lists process groups before its events, too."""
_BYTES = {
    "Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
_LISTED = 5


_PLAIN = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"),
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_DICT", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE"),
    )
)
"""Operations that build numbers, texts, lists, tuples and dicts."""


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dicts only."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


def is_dump(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a dump."""
    return head[:1] == b"\x80" or (any(key in head for key in _KEYS) and not any(key in head for key in _KINETO))


def read_dump(file: IO[bytes]) -> RankTrace:
    """Read the dump of a rank. Raises BadTrace if it is none."""
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadTrace(f"the dump is larger than {MAX_BYTES >> 20} MiB; use a smaller TORCH_NCCL_TRACE_BUFFER_SIZE")
    content = _content(data)
    entries = content.get("entries") if isinstance(content, Mapping) else None
    if not isinstance(entries, list):
        raise BadTrace("the file has no entries of NCCL's flight recorder; dump it with TORCH_NCCL_DUMP_ON_TIMEOUT=1")
    rows, problems = _rows(entries)
    rows.sort(key=lambda row: row[1])
    origin_ns = rows[0][1] if rows else 0
    names: dict[str, int] = {}
    groups: dict[str, int] = {}
    timeline, messages = Timeline(), Messages()
    for message, begin_ns, end_ns in rows:
        # Seconds since 1970 as a float have a resolution of only 0.2 us: the differences are taken before.
        times = (begin_ns - origin_ns) * _NANO, (end_ns - origin_ns) * _NANO
        name, lane = names.setdefault(message.name, len(names)), groups.setdefault(message.group, len(groups))
        timeline.add(*times, name, lane, COMMUNICATION)
        messages.add(message.group, message.name, message.sequence, *times, message.bytes, 0)
    return RankTrace(
        rank=None,
        world_size=_world_size(content.get("pg_config")),
        host="",
        device="",
        origin_s=origin_ns * _NANO,
        names=list(names),
        timeline=timeline,
        launches=Spool(LAUNCH, "number"),
        steps=[],
        messages=messages.numbered(0.0),
        message_count=messages.count,
        memory=[],
        is_gpu=True,
        events=len(entries),
        bytes_read=len(data),
        operations=Timeline(),
        spans=Timeline(),
        problems=problems,
    )


def _content(data: bytes) -> Any:
    try:
        if data[:1] != b"\x80":
            return json.loads(data)
        _check(data)
        return _Plain(io.BytesIO(data)).load()
    except MemoryError:
        raise
    # The bytes of a damaged pickle decide which exception it raises.
    except Exception as error:
        raise BadTrace(f"the dump cannot be read ({str(error)[:120]}); dump it again") from error


def _check(data: bytes) -> None:
    """Raise an error for operations of a pickle that are not plain, and for places of its memo far beyond its values.

    The unpickler allocates its memo up to the largest place: eight bytes of a file could claim gigabytes.
    """
    for count, (operation, argument, at) in enumerate(pickletools.genops(data)):
        if operation.name not in _PLAIN:
            raise pickle.UnpicklingError(f"{operation.name} at byte {at} is not plain data")
        if operation.name in ("BINPUT", "LONG_BINPUT") and (argument or 0) > count:
            raise pickle.UnpicklingError(f"place {argument} of the memo at byte {at} is beyond its {count} values")


def _rows(entries: list[Any]) -> tuple[list[tuple[Message, int, int]], list[str]]:
    """Return (message, begin, end in ns) of the entries with a time, and what is wrong with the others."""
    rows: list[tuple[Message, int, int]] = []
    open_ones, damaged = [], 0
    for entry in entries:
        row = _row(entry) if isinstance(entry, Mapping) else None
        if row is None:
            damaged += 1
            continue
        rows.append(row)
        state = _text(entry.get("state"))
        if state != "completed":
            message = row[0]
            open_ones.append(f"{message.name} {message.sequence} of group {message.group or '0'} ({state[:20]})")
    problems = []
    if open_ones:
        more = f" and {len(open_ones) - _LISTED} more" if len(open_ones) > _LISTED else ""
        problems.append(f"not completed: {', '.join(open_ones[:_LISTED])}{more}; compare the last ones of all ranks")
    if damaged:
        problems.append(f"{damaged} of {len(entries)} entries have no valid time or number and are left out")
    return rows, problems


def _row(entry: Mapping[str, Any]) -> tuple[Message, int, int] | None:
    """Return (message, begin, end in ns) of an entry; None without a time or a number."""
    name = (_text(entry.get("profiling_name")) or "collective").removeprefix("nccl:")[:200]
    process_group = entry.get("process_group")
    group = _text(process_group[0])[:200] if isinstance(process_group, list | tuple) and process_group else ""
    number = _whole(entry, "p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")
    begin = _whole(entry, "time_discovered_started_ns", "time_created_ns")
    end = _whole(entry, "time_discovered_completed_ns")
    if begin is None or number is None:
        return None
    length_ms = entry.get("duration_ms")
    if isinstance(length_ms, int | float) and 0 <= length_ms < _LARGEST / 1e6:
        end = begin + int(1e6 * length_ms)
    return Message(group, name, number, 0.0, 0.0, _size(entry), 0), begin, max(begin, end or begin)


def _text(value: object) -> str:
    """Return a text or a number as text: that of nested lists from a pickle may be of any length."""
    return str(value) if isinstance(value, str | int) and not _is_huge(value) else ""


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and not -_LARGEST < value < _LARGEST


def _whole(entry: Mapping[str, Any], *names: str) -> int | None:
    values = (entry.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and not _is_huge(value)), None)


def _size(entry: Mapping[str, Any]) -> float:
    """Return the larger of inputs and outputs in bytes."""
    totals = []
    for kind in ("input", "output"):
        sizes, types = entry.get(f"{kind}_sizes"), entry.get(f"{kind}_dtypes")
        total = 0.0
        if isinstance(sizes, list) and isinstance(types, list):
            for shape, dtype in zip(sizes, types, strict=False):
                if isinstance(shape, list | tuple) and all(isinstance(n, int) and not _is_huge(n) for n in shape):
                    total += math.prod(map(float, shape)) * _BYTES.get(_text(dtype), 0)
        totals.append(total if total < _LARGEST else 0.0)
    return max(totals)


def _world_size(groups: Any) -> int | None:
    """Return the number of ranks of the largest process group."""
    sizes = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        try:
            listed = json.loads(ranks) if isinstance(ranks, str) else ranks
        except ValueError:
            continue
        if isinstance(listed, list):
            sizes.append(len(listed))
    return max(sizes, default=None)
