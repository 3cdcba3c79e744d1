"""The attempts of a chain on the page of a run: a strip over time, and what it shows in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.urls import reverse
from django.utils import timezone

from parlab.charts.format import DASH, duration, significant
from parlab.charts.runs.attempt_strip import LOOKS, Bar, attempt_strip
from parlab.charts.svg import Svg
from parlab.lab.models import Run
from parlab.publishing.figures.chains import Chain, ChainAttempt, chain_of
from runners.wire.protocol import RunState

_STRIP = 200
"""Attempts that are drawn: the last ones."""


class Count(NamedTuple):
    """Attempts that ended in one way."""

    number: int
    title: str
    fill: str
    """Class of its colour in the strip."""


class AttemptStrip(NamedTuple):
    """What the page shows of a chain."""

    figure: Svg | None
    """None before the first start."""
    title: str
    counts: Sequence[Count]
    facts: str
    last: str
    """The last end in words, with Slurm's."""
    is_last: bool
    """A person has ended the chain: no attempt follows."""


def attempt_strip_of(run: Run) -> AttemptStrip | None:
    """Return the strip of a chain; None for any other run."""
    chain = chain_of(run)
    if chain is None:
        return None
    started = [attempt for attempt in chain.attempts if attempt.started_at is not None]
    ended = [attempt for attempt in chain.attempts if attempt.ended_at is not None]
    count = len(chain.attempts)
    return AttemptStrip(
        _figure(run, chain, started[-_STRIP:]) if started else None,
        f"{count} attempt{'' if count == 1 else 's'}{_length(started)}",
        _counts(chain),
        "; ".join(_facts(chain)),
        f"Attempt {ended[-1].number}: {ended[-1].reason}" if ended and ended[-1].reason and not run.is_final else "",
        run.chain_ended_at is not None and not run.is_final,
    )


def _length(started: Sequence[ChainAttempt]) -> str:
    if not started or started[0].started_at is None:
        return ""
    end = started[-1].ended_at or timezone.now()
    return f" in {duration((end - started[0].started_at).total_seconds())}"


def _counts(chain: Chain) -> list[Count]:
    counts = [(state, chain.count(RunState(state))) for state in LOOKS]
    return [Count(number, LOOKS[state].title, LOOKS[state].fill) for state, number in counts if number]


def _facts(chain: Chain) -> list[str]:
    facts = []
    if len(chain.attempts) > 1:
        gaps = f"gaps {duration(chain.waited_s)} in total, the longest {duration(chain.longest_gap_s)}"
        facts.append(gaps)
    if chain.once_pct is not None:
        share = f" ({significant(chain.once_pct, 4)} % computed once)" if chain.repeated else ""
        facts.append(f"{chain.steps:,} steps, {chain.repeated or 'none'} made again{share}")
    return facts


def _figure(run: Run, chain: Chain, started: Sequence[ChainAttempt]) -> Svg:
    now = timezone.now()
    bars = [_bar(run, attempt, now.timestamp()) for attempt in started]
    last = bars[-1].ends_s if run.is_final else now.timestamp()
    label = f"Attempts of run {run.number} over time: {len(chain.attempts)}"
    return attempt_strip(bars, (bars[0].starts_s, last), label)


def _bar(run: Run, attempt: ChainAttempt, now_s: float) -> Bar:
    assert attempt.started_at is not None
    ends_s = attempt.ended_at.timestamp() if attempt.ended_at is not None else now_s
    state = attempt.state if attempt.ended_at is not None else "running"
    address = f"{reverse('run', args=[run.experiment.slug, run.number])}?attempt={attempt.number}"
    return Bar(attempt.number, state, attempt.started_at.timestamp(), ends_s, address, _note(attempt, ends_s))


def _note(attempt: ChainAttempt, ends_s: float) -> str:
    assert attempt.started_at is not None
    state = LOOKS[attempt.state].title if attempt.state in LOOKS else attempt.state
    parts = [f"Attempt {attempt.number}: {state}", duration(ends_s - attempt.started_at.timestamp())]
    if attempt.first_step is not None:
        parts.append(f"steps {attempt.first_step}{DASH}{attempt.last_step}")
    if attempt.number > 1 and attempt.waited_s is not None:
        parts.append(f"after a gap of {duration(attempt.waited_s)}")
    parts += [f"on {attempt.nodes}"] if attempt.nodes else []
    parts += [attempt.reason] if attempt.reason else []
    return ", ".join(parts)
