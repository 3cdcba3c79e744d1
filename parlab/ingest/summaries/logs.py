"""The log of an attempt: all of it, that of one node, or that of one rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.chains import earlier_attempts
from parlab.lab.selectors.layouts import RankLayout, rank_layout
from parlab.series import log, log_search
from parlab.whole_numbers import whole_number


class LogPart(NamedTuple):
    """The part of a log that a person has chosen; None: not restricted."""

    node_rank: int | None = None
    rank: int | None = None

    @property
    def query(self) -> str:
        """The part as parameters of an address: `rank=5`; empty for the whole log."""
        if self.rank is not None:
            return f"rank={self.rank}"
        return "" if self.node_rank is None else f"node={self.node_rank}"


class LogProblem(NamedTuple):
    """Why a requested part does not exist."""

    field: str
    value: str
    message: str
    remedy: str


def requested_part(
    query: Mapping[str, str], run: Run, attempt: Attempt, *, has_rank_streams: bool | None = None
) -> tuple[LogPart, LogProblem | None]:
    """Read `?node=1` or `?rank=5`; the whole log with the problem if there is no such node or rank."""
    layout = rank_layout(run, attempt)
    node, rank = query.get("node", "").strip(), query.get("rank", "").strip()
    if rank:
        number = _number_below(rank, layout.ranks)
        if number is None:
            return LogPart(), _out_of_range("rank", rank, layout.ranks)
        if not (log.has_rank_streams(attempt.pk) if has_rank_streams is None else has_rank_streams):
            return LogPart(), _without_streams(rank, layout)
        return LogPart(layout.node_rank_of(number), number), None
    if node:
        number = _number_below(node, len(layout.nodes))
        return (
            (LogPart(), _out_of_range("node", node, len(layout.nodes))) if number is None else (LogPart(number), None)
        )
    return LogPart(), None


def _number_below(text: str, limit: int) -> int | None:
    number = whole_number(text)
    return number if number is not None and number < limit else None


def _out_of_range(field: str, value: str, count: int) -> LogProblem:
    message = f"the run has no {field} {value[:40]!r}"
    choice = f"use a number from 0 to {count - 1}" if count > 1 else "use 0" if count else "leave it out"
    return LogProblem(field, value, message, choice)


def _without_streams(rank: str, layout: RankLayout) -> LogProblem:
    message = "the output of the ranks of this run is not separated"
    return LogProblem("rank", rank, message, "use node" if len(layout.nodes) > 1 else "read the whole log")


def tail(attempt: Attempt, part: LogPart, lines: int) -> list[str]:
    """Return the last lines for a page; in a chain those of earlier attempts fill up what the current one lacks."""
    found = log.log_tail(attempt.pk, lines, node_rank=part.node_rank, rank=part.rank)
    following = attempt
    for earlier in reversed(earlier_attempts(attempt)):
        if len(found) >= lines:
            break
        before = log.log_tail(earlier.pk, lines - len(found), node_rank=part.node_rank, rank=part.rank)
        found = [*before, divider(following), *found]
        following = earlier
    return found


def divider(attempt: Attempt) -> str:
    """Return the line between the logs of two attempts."""
    return f"[parlab] attempt {attempt.number}"


def whole_text(attempt: Attempt, part: LogPart) -> Iterator[bytes]:
    """Yield a part as it was printed, in a chain that of all attempts, one after the other."""
    for each in earlier_attempts(attempt):
        yield from text(each, part)
        following = each.number + 1
        yield f"[parlab] attempt {following}\n".encode()
    yield from text(attempt, part)


def find(attempt: Attempt, part: LogPart, pattern: re.Pattern[bytes]) -> log_search.Search:
    """Return the first lines that match."""
    return log_search.log_find(attempt.pk, pattern, node_rank=part.node_rank, rank=part.rank)


def around(attempt: Attempt, part: LogPart, line: int) -> list[log_search.FoundLine]:
    return log_search.log_around(attempt.pk, line, node_rank=part.node_rank, rank=part.rank)


def text(attempt: Attempt, part: LogPart) -> Iterator[bytes]:
    """Yield a part as it was printed; lines of several streams begin with who printed them."""
    if part.rank is not None:
        yield from log.read_log(attempt.pk, node_rank=part.node_rank, rank=part.rank)
        return
    nodes = log.node_ranks(attempt.pk) if part.node_rank is None else [part.node_rank]
    if len(nodes) < 2 and not log.has_rank_streams(attempt.pk):
        yield from log.read_log(attempt.pk, node_rank=part.node_rank)
        return
    for piece in log.log_pieces(attempt.pk, nodes):
        start = log.printer(piece.rank, piece.node_rank if len(nodes) > 1 else None).encode()
        yield b"".join(start + line for line in piece.text.splitlines(keepends=True)) if start else piece.text


def read_from(attempt: Attempt, part: LogPart, position: int, limit: int) -> bytes:
    """Return up to `limit` bytes of a part from a position of it, as it was printed."""
    streams = len(log.node_ranks(attempt.pk)) if part.node_rank is None else 1
    if part.rank is None and streams < 2:
        return log.read_from(attempt.pk, position, limit, node_rank=part.node_rank or 0)
    output, at = bytearray(), 0
    for piece in log.read_log(attempt.pk, node_rank=part.node_rank, rank=part.rank):
        output += piece[max(0, position - at) :][: limit - len(output)]
        at += len(piece)
        if len(output) == limit:
            break
    return bytes(output)
