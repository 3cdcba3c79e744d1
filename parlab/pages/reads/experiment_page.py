"""What all tabs of an experiment show: its head, and the list of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from django.http import QueryDict

from parlab.charts.panels.shown import ShownRun
from parlab.charts.points import RunPoint
from parlab.fleet import services as fleet
from parlab.lab.models import Config, Experiment, Run
from parlab.lab.selectors.analysis.identities import identities
from parlab.lab.selectors.analysis.surroundings import run_surroundings
from parlab.lab.selectors.analysis.sweep import run_points
from parlab.lab.selectors.experiments import (
    LaunchPlan,
    Versions,
    experiment_runs,
    experiment_versions,
    launch_plan,
    state_counts,
)
from parlab.lab.selectors.findings import experiment_findings, run_doubts
from parlab.lab.selectors.runs import model_text
from parlab.pages.reads.experiment_runs import ListedRun, ListedRuns, listed_runs, shown_runs
from parlab.publishing.answers.answer import Answer
from parlab.publishing.answers.experiment_answer import answer_of, case_of
from runners.config import digest

TABS = (
    ("experiment", "Charts"),
    ("experiment-table", "Table"),
    ("experiment-time", "Time"),
    ("experiment-compare", "Compare"),
    ("experiment-configuration", "Configuration"),
    ("experiment-report", "Report"),
)
"""Names of addresses, and titles."""


def chosen_versions(experiment: Experiment, query: QueryDict) -> Versions:
    """Return the versions whose runs are shown: all of them unless the address names one."""
    return experiment_versions(experiment, query.get("version") or "all")


def chosen_runs(experiment: Experiment, query: QueryDict) -> list[Run]:
    return experiment_runs(experiment, chosen_versions(experiment, query))


def trained_text(runs: Sequence[Run]) -> str:
    """Return the model that all runs train; empty if they train several or none."""
    texts = {model_text(run.resolved) for run in runs}
    return texts.pop() if len(texts) == 1 else ""


class ExperimentPage:
    """The runs of an experiment with what its head and list say of them."""

    def __init__(self, experiment: Experiment, query: QueryDict) -> None:
        self.experiment = experiment
        self.query = query
        self.versions = chosen_versions(experiment, query)
        self.runs = experiment_runs(experiment, self.versions)
        known = identities(self.runs)
        self.shown: list[ShownRun] = shown_runs(self.runs, known)
        self.surroundings = run_surroundings(self.runs)
        self.answer: Answer = answer_of(case_of(experiment, self.runs, known, lambda: self.points), self.surroundings)
        self.findings = experiment_findings(experiment)
        self.doubts = run_doubts(self.findings, self.runs)
        listed = listed_runs(self.runs, self.shown, query.get("number", ""))
        self.listed: ListedRuns = listed._replace(rows=[self._with_doubts(row) for row in listed.rows])

    def _with_doubts(self, row: ListedRun) -> ListedRun:
        of_run = self.doubts.get(row.run.pk, {})
        return row._replace(doubts=list({finding.pk: finding for own in of_run.values() for finding in own}.values()))

    @property
    def newest(self) -> Config | None:
        """Return the configuration that a launch starts: the selected one, else the newest."""
        return self.versions.selected or (self.versions.configs[0] if self.versions.configs else None)

    @cached_property
    def points(self) -> list[RunPoint]:
        """Return the runs with results as points of figures, repeats as one."""
        return run_points(self.runs)

    @cached_property
    def plan(self) -> LaunchPlan:
        return launch_plan(self.newest, self.runs)

    @cached_property
    def waiting(self) -> dict[int, str]:
        """Return why queued runs wait, by run id."""
        return fleet.waiting_reasons(self.runs)

    @property
    def is_live(self) -> bool:
        return any(not run.is_final for run in self.runs)

    @property
    def seen(self) -> str:
        """Return the digest of what a poll would show."""
        changing = [[run.state, getattr(run, "last_step", None), run.step_time_s, run.reason] for run in self.runs]
        doubted = [[finding.pk, finding.is_acknowledged] for finding in self.findings]
        waiting = list(self.waiting.values())
        return digest([changing, doubted, waiting, self.versions.query, self.listed.measure])[:16]

    def context(self, tab: str) -> dict[str, Any]:
        """Return what the templates of all tabs need."""
        return {
            "section": "experiments",
            "experiment": self.experiment,
            "tab": tab,
            "tabs": TABS,
            "versions": self.versions,
            "runs": self.runs,
            "listed": self.listed,
            "plan": self.plan,
            "newest": self.newest,
            "answer": self.answer,
            "findings_open": sum(not finding.is_acknowledged for finding in self.findings),
            "states": state_counts(run.shown_state for run in self.runs),
            "trained": trained_text(self.runs),
            "waits_for": next(iter(self.waiting.values()), ""),
            "is_live": self.is_live,
            "seen": self.seen,
        }
