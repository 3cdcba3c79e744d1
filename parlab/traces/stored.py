"""The analysis of a trace as it is stored, and checks of the traces of a run against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import IO

from pydantic import BaseModel

from .breakdown import KernelRow, Window, breakdown
from .collectives import Meeting, RankMessages, meeting
from .events import Message
from .kinds import NO_COMPUTE, PRODUCTS
from .reading import RankTrace, read_trace
from .stragglers import NodeLateness, by_node

_CLOCK_S = 3_600.0
"""Clocks of nodes may differ by this before a trace counts as one of another run."""
_EPOCH_S = 1e9
"""Smaller times are not those of a calendar."""
_LISTED = 8
_RANK = re.compile(r"rank[-_ ]?(\d{1,6})", re.I)
_NUMBER = re.compile(r"(\d{1,6})(?=[^\d/]*$)")


class Analysis(BaseModel):
    """A traced rank: what is shown and compared. Times in seconds since `origin_s`."""

    rank: int | None
    world_size: int | None
    host: str
    device: str
    origin_s: float
    """Unix seconds, or the clock of the profiler in traces without a base time."""
    is_gpu: bool
    events: int
    bytes_read: int
    whole: Window
    steps: list[Window]
    kernels: list[KernelRow]
    classes: list[tuple[str, float]]
    messages: list[Message]
    memory: list[tuple[float, float, float]]
    problems: list[str]

    @property
    def memory_peak_bytes(self) -> float | None:
        """Highest allocated memory."""
        return max((used for _, used, _ in self.memory), default=None)

    def compute_shares(self) -> tuple[float, float]:
        """Return the shares of matrix products and of other kernels in the compute; the rest is the optimizer's."""
        compute = {name: seconds for name, seconds in self.classes if name not in NO_COMPUTE}
        whole = sum(compute.values())
        if not whole:
            return 0.0, 0.0
        products = sum(compute.get(name, 0.0) for name in PRODUCTS) / whole
        return products, 1 - products - compute.get("optimizer", 0.0) / whole

    def per_step(self) -> Window:
        """Return the mean of the steps, or the whole trace without steps."""
        if not self.steps:
            return self.whole
        count = len(self.steps)
        sums = [sum(values) / count for values in zip(*(step[3:] for step in self.steps), strict=True)]
        length_s = sum(step.total_s for step in self.steps) / count
        return Window(None, 0.0, length_s, *sums)


def analyse(file: IO[bytes]) -> Analysis:
    """Read and break down the trace of a rank. Raises chunks.BadTrace if the file is no trace."""
    return analysis_of(read_trace(file))


def analysis_of(trace: RankTrace) -> Analysis:
    """Break down the trace of a rank."""
    result = breakdown(trace)
    problems = [*trace.problems, *result.problems]
    if trace.message_count > len(trace.messages):
        problems.append(
            f"only the first {len(trace.messages)} of {trace.message_count} collectives are compared with other ranks"
        )
    return Analysis(
        rank=trace.rank,
        world_size=trace.world_size,
        host=trace.host[:200],
        device=trace.device[:200],
        origin_s=trace.origin_s,
        is_gpu=trace.is_gpu,
        events=trace.events,
        bytes_read=trace.bytes_read,
        whole=result.whole,
        steps=list(result.steps),
        kernels=[row._replace(name=row.name[:300]) for row in result.kernels],
        classes=list(result.classes),
        messages=trace.messages,
        memory=trace.memory,
        problems=problems,
    )


def rank_of(analysis: Analysis, name: str) -> int | None:
    """Return the rank that a trace states, else the one in the name of its file, such as `rank3.json`."""
    if analysis.rank is not None:
        return analysis.rank
    stem = name.split(".", maxsplit=1)[0]
    match = _RANK.search(name) or _NUMBER.search(stem)
    return int(match[1]) if match else None


def contradictions(
    analyses: Mapping[int, Analysis], ranks: int | None, ran_s: tuple[float, float] | None
) -> Iterator[str]:
    """Yield what speaks against the traces being of one run of `ranks` ranks.

    `ran_s` is the start and end of the run (unix time), if they are known.
    """
    sizes = sorted({analysis.world_size for analysis in analyses.values() if analysis.world_size})
    if len(sizes) > 1:
        yield f"traces of several runs are mixed: world sizes {', '.join(map(str, sizes))}"
    elif sizes and ranks and sizes != [ranks]:
        yield f"the traces are of {sizes[0]} ranks, this run has {ranks}: they may be of another run"
    expected = sizes[0] if len(sizes) == 1 else ranks
    missing = (expected or 0) - sum(rank < (expected or 0) for rank in analyses)
    if missing and analyses:
        # A file may state any number of ranks.
        absent = (rank for rank in range(len(analyses) + _LISTED) if rank not in analyses)
        listed = ", ".join(map(str, islice(absent, min(missing, _LISTED)))) + (", ..." if missing > _LISTED else "")
        yield f"{missing} of {expected} ranks have no trace: {listed}; import them to compare all ranks"
    yield from _times_apart(analyses, ran_s)


def _times_apart(analyses: Mapping[int, Analysis], ran_s: tuple[float, float] | None) -> Iterator[str]:
    steps = [{step.step for step in analysis.steps} for analysis in analyses.values() if analysis.steps]
    if steps and not set.intersection(*steps):
        yield "the ranks have no step in common: their traces were not recorded together"
    for rank, analysis in analyses.items():
        if (
            ran_s
            and analysis.origin_s > _EPOCH_S
            and not (ran_s[0] - _CLOCK_S < analysis.origin_s < ran_s[1] + _CLOCK_S)
        ):
            yield f"the trace of rank {rank} was not recorded while this run ran: it may be of another run"


def meeting_of(analyses: Mapping[int, Analysis]) -> Meeting:
    """Match the collectives of the traced ranks."""
    return meeting({rank: RankMessages(a.origin_s, a.messages) for rank, a in analyses.items()})


def node_lateness(analyses: Mapping[int, Analysis], met: Meeting) -> list[NodeLateness]:
    """Return for which nodes the others waited, the worst first; empty unless the traces are of several nodes."""
    hosts = {rank: analysis.host for rank, analysis in analyses.items()}
    return by_node({row.rank: (row.late, row.late_by_s) for row in met.ranks}, hosts)
