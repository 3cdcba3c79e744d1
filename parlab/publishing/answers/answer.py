"""What an answer holds, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from parlab.charts.points import RunPoint
from parlab.charts.svg import Look
from parlab.lab.models import Experiment, Run
from parlab.lab.selectors.analysis.identities import Identity

from .standings import Standing, Standings


class Case(NamedTuple):
    experiment: Experiment
    runs: Sequence[Run]
    identities: Mapping[int, Identity]
    standings: Standings
    points: Callable[[], Sequence[RunPoint]]
    """Returns the runs as points of figures; most answers need none."""

    @property
    def question(self) -> str:
        return f"{self.experiment.question} {self.experiment.name}".lower()


class Short(NamedTuple):
    """An answer in at most six words, for lists: `1F1B, micro batch 2` `: 2.0 × GPipe`."""

    lead: str = ""
    """The part that is set in bold; it may be empty."""
    rest: str = ""

    def __str__(self) -> str:
        return self.lead + self.rest


class Action(NamedTuple):
    text: str
    kind: str
    """repeat, launch, open or run: what the page makes of it."""
    run: Run | None = None
    """The run that it is about."""


class Answer(NamedTuple):
    """The answer to the question of an experiment."""

    verdict: str
    """One sentence that answers the question."""
    short: Short
    rest: tuple[str, ...] = ()
    """Further sentences: the runner-up, what it costs."""
    noise: str = ""
    """`within noise ±22 %` where the difference may be chance; it belongs to the first sentence of `rest`."""
    is_lead_unsure: bool = False
    """Whether the verdict itself is within noise: it is then not set in bold."""
    action: Action | None = None
    key: str = ""
    """The number of the answer: `138 samples/s`."""
    tone: str = "good"
    """good, warn, bad or plain: how the number is set."""
    best: Run | None = None
    look: Look | None = None
    """That of the best run."""
    is_final: bool = True
    """Whether no run is on its way."""

    def about(self, row: Standing) -> Answer:
        """Return the answer with the run that it is about, and its look."""
        return self._replace(best=row.run, look=row.identity.look)
