"""The pipeline runner of the 3-node case (dist_pipeline_runner.py of DeDLOC's successors).

Each rank prints the times of its forward and backward passes; at the end the first rank prints the average without the
first iteration. The order of a rank's lines gives its iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.records import Ending, Field, Kind, Record, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import slug, to_float
from parlab.formats.launch import command_arguments, is_command, namespace_arguments

SIGNS: Signs = (
    (re.compile(r"Finished running\s+\d+\s+iterations, (?:averaged|run time)"), 10),
    (re.compile(r"^\s*Rank \d+ node .{1,60} takes [\d.]+s"), 10),
)

_PHASE = re.compile(r"\s*Rank (\d{1,7}) node (.{1,60}?) takes (\S{1,30}?)s\s*$")
_START = re.compile(r"Rank \d{1,7} node ")
_FINISHED = re.compile(
    r"\s*Finished running\s+(\d{1,18})\s+iterations, (averaged[^:]{0,60}|run time)[^:]{0,20}: ?(\S{1,30})"
)
MAX_RANKS = 65_536


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a log of the pipeline runner; yield timers per rank, iterations and the stated average."""
    turns: dict[int, int] = {}
    is_finished = False
    for line, rank, time, text in peel(lines, _START):
        match = _PHASE.match(text)
        if match:
            # After the end, a rank that has done as many iterations as any other begins another launch.
            if is_finished and "forward" in match[2] and turns.get(int(match[1])) == max(turns.values(), default=0):
                turns.clear()
                is_finished = False
            yield _phase(line, time, match, turns)
            continue
        match = _FINISHED.match(text)
        if match:
            is_finished = True
            yield from _finished(line, rank, match)
            continue
        arguments = namespace_arguments(text) or (command_arguments(text) if is_command(text) else {})
        if arguments:
            yield Record("launch", line, data=arguments)
            continue
        end = ending(text)
        if end:
            yield Record("end", line, data=end, rank=rank, time=time)


@lru_cache(maxsize=1024)
def _kind(name: str) -> tuple[Kind, Field]:
    """Return what the time of a phase becomes: the step, or a timer."""
    if "iteration" in name:
        return "step", Field("step_time_s", f"{name} takes", "s")
    timer = slug(name.removesuffix(" pass").removesuffix(" step")).replace("_", "-")
    return "timers", Field(timer, f"{name} takes", "s")


def _phase(line: int, time: str | None, match: re.Match[str], turns: dict[int, int]) -> Record:
    rank, name, text = match.groups()
    speaker, seconds = int(rank), to_float(text)
    if seconds is None:
        return unread(line, "not a finite number", match[0])
    if "forward" in name and (speaker in turns or len(turns) < MAX_RANKS):
        turns[speaker] = turns.get(speaker, 0) + 1
    kind, field = _kind(name)
    return Record(kind, line, {field.name: seconds}, turns.get(speaker, 1), speaker, time, (field,), (text,))


def _finished(line: int, rank: int | None, match: re.Match[str]) -> Iterator[Record]:
    seconds = to_float(match[3])
    if seconds is None:
        yield unread(line, "not a finite number", match[0])
        return
    averaged = match[2].startswith("averaged")
    name = "stated_mean_step_time_s" if averaged else "step_time_s"
    values = {name: seconds, "stated_iterations": float(match[1])}
    fields = (Field(name, match[2].strip(), "s"), Field("stated_iterations", "iterations"))
    yield Record("metrics", line, values, rank=rank, fields=fields, raw=(match[3], match[1]))
    yield Record("end", line, data=Ending("finished", f"finished running {match[1]} iterations"))
