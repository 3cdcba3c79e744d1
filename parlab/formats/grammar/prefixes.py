"""Preprocessing for all log readers: strip launchers' prefixes from lines and return rank and time stamp."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import orjson

# Line number, rank that printed the line, printed time stamp, text.
Line = tuple[int, int | None, str | None, str]

ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])")

_STAMP = r"\d{4}[-/]\d\d[-/]\d\d[T_ ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_AMERICAN = r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d"
# A leading host name (pdsh) is stripped only if a log line certainly follows; in `steps: 1 loss: 2` there is none.
PREFIX = re.compile(
    r"\s*(?:"
    r"\[default(?P<torchrun>\d{1,6})\]:"  # torchrun --tee
    r"|\[rank(?P<rank>\d{1,6})\]:"  # torch
    r"|\[(?i:rank)-(?P<primus>\d{1,6})/\d{1,6}\]:?"  # Primus
    r"|\[(?:\d{1,6}),(?P<mpi>\d{1,6})\]\s*(?:<std(?:out|err)>)?:"  # mpirun --tag-output
    r"|(?P<srun>\d{1,6}):(?=\s)(?!\s\d[\d.]{0,18}, \d)"  # srun -l, and not the step of `100: 12.3, 13.4 avg loss`
    r"|\((?=[^()]{0,120}\bpid=)(?:[^()]{0,60}?\brank=(?P<sky>\d{1,6}))?[^()]{0,120}\)"  # Ray, SkyPilot
    r"|\[pod/[^\]\s]{1,200}\]"  # kubectl logs --prefix
    r"|wandb:(?=\s)"
    r"|(?:> ?){1,4}(?=\[?(?:[A-Z]{4,8} )?\d{4}[-/]\d\d[-/]\d\d[T_ ]\d\d:)"  # a quotation
    r"|\[titan\](?=\s)"  # torchtitan
    r"|std(?:out|err) [FP](?=\s)"  # Kubernetes' log files
    r"|(?:DEBUG|INFO):[A-Za-z_][\w.]{0,80}:"  # logging.basicConfig of Python
    r"|\| [A-Z]{4,8}\s{0,6}\| [\w.]{1,80}:[\w<>]{1,60}:\d{1,6} -(?=\s)"  # loguru
    rf"|\[(?:[A-Z]{{4,8}} )?(?P<stamp>{_STAMP}|\d{{8}} \d\d:\d\d:\d\d)(?: [A-Z]{{4,8}})?\]"
    rf"|(?P<bare>{_STAMP}|{_AMERICAN})(?::(?=\s)|(?=[\s|]))"
    r"|[A-Za-z0-9][\w.-]{1,62}:(?=\s+(?:\[\d{4}-|iteration\s+\d|time \(ms\)|steps: \d))"  # pdsh
    r") ?"
)
# A stamp in front of a record, for patterns of `start`.
STAMP = rf"(?:\[?(?:{_STAMP}|{_AMERICAN})\]?:?\s)?"
_RANKS = ("torchrun", "rank", "primus", "mpi", "srun", "sky")
_MAX_PREFIXES = 6
# Tags of another rank within a line, whose line feed was lost.
_NEXT_RANK = re.compile(r"(?=\[(?:default|rank)\d{1,6}\]:|\[\d{1,6},\d{1,6}\]\s?<std(?:out|err)>:)")


def _has_prefix(text: str) -> bool:
    """Return whether a line begins with a tag or a time stamp; rows of numbers are answered without the pattern."""
    if ":" in text or "[" in text or "(" in text or "std" in text:
        return PREFIX.match(text) is not None
    return False


def strip_prefix(text: str) -> tuple[int | None, str | None, str]:
    """Strip leading tags from a line; return rank, time stamp and the rest."""
    rank: int | None = None
    stamp: str | None = None
    for _ in range(_MAX_PREFIXES):
        match = PREFIX.match(text)
        if match is None:
            break
        kind = match.lastgroup
        if kind in _RANKS:
            rank = int(match[kind])
        elif kind:
            if stamp:
                break
            stamp = match[kind]
        text = text[match.end() :]
    return rank, stamp, text


def peel(lines: Iterable[str], start: re.Pattern[str] | None = None) -> Iterator[Line]:
    """Yield (line number, rank, time stamp, text) of each line; a progress bar yields one text per redraw.

    Colours, rank prefixes, tags of srun, mpirun, Kubernetes and Ray, and leading time stamps are stripped. A line is
    split before each further match of `start`, the beginning of a record.
    """
    for number, line in enumerate(lines, 1):
        if start is None:
            if is_plain(line):
                yield number, None, None, line
            else:
                yield from peel_line(number, line)
            continue
        for peeled in peel_line(number, line):
            parts = spliced(start, peeled[3])
            yield (*peeled[:3], parts[0])
            for part in parts[1:]:
                rank, time, text = strip_prefix(part)
                yield number, peeled[1] if rank is None else rank, time, text


def is_plain(line: str) -> bool:
    """Return whether a line has nothing that `peel_line` strips or splits."""
    return "\r" not in line and "\x1b" not in line and not _has_prefix(line) and not line.startswith('{"')


def peel_line(number: int, line: str) -> Iterable[Line]:
    """Return the results of `peel` for one line."""
    if line.startswith('{"') and (wrapped := _unwrapped(line)) is not None:
        rank, stamp, text = strip_prefix(ANSI.sub("", wrapped[0]))
        parts = [part for part in text.split("\r") if part and not part.isspace()]
        return [(number, rank, stamp or wrapped[1], part) for part in parts]
    text = ANSI.sub("", line) if "\x1b" in line else line
    if "\r" in text:
        parts = text.rstrip("\r\n").split("\r")
        return [(number, *strip_prefix(part)) for part in parts if part and not part.isspace()]
    if not _has_prefix(text):
        return ((number, None, None, text),)
    if text.find("]:", 20) > 0 or text.find(">:", 20) > 0:
        return [(number, *strip_prefix(part)) for part in _NEXT_RANK.split(text) if part]
    return ((number, *strip_prefix(text)),)


# Keys under which container runtimes and log collectors keep a line, and those of its time.
_TEXTS = ("log", "textPayload", "MESSAGE", "message", "msg", "line")
_TIMES = ("time", "timestamp", "@timestamp", "ts")
_WRAPPED = re.compile(r'"(?:log|textPayload|MESSAGE|message|msg|line)": ?"')


def _unwrapped(line: str) -> tuple[str, str | None] | None:
    """Return the line in an object of Docker, Google Cloud or journald, and its time; None for any other object."""
    if not _WRAPPED.search(line[:4_000]):
        return None
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    text = next((data[key] for key in _TEXTS if isinstance(data.get(key), str)), None)
    # An object with numbers of its own is a record of the program.
    if text is None or any(type(value) is float and key not in _TIMES for key, value in data.items()):
        return None
    stamp = next((data[key] for key in _TIMES if isinstance(data.get(key), str)), None)
    return text, stamp


def spliced(start: re.Pattern[str], text: str) -> list[str]:
    """Split a text before each further match of `start`: records of several ranks without a line feed between them."""
    first = start.search(text)
    second = start.search(text, first.end()) if first else None
    if second is None:
        return [text]
    cuts = [0, *(match.start() for match in start.finditer(text, second.start())), len(text)]
    return [text[begin:end] for begin, end in pairwise(cuts)]
