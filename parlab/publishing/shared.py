"""What a public link shows of an experiment, a run or a dashboard: a report with the present numbers."""

from __future__ import annotations

from typing import NamedTuple

from django.contrib.auth.models import AnonymousUser

from parlab.lab.models import Dashboard, Experiment, Report, ReportLink, Run
from parlab.lab.models.access.viewer import Viewer
from parlab.lab.services.pages.dashboards import panels_of

_COLUMNS = 'columns="Run=run, Point=label, Step=step_time_s, Throughput=samples_per_s samples/s"'
_NUMBERS = (("Step time", "step_time_s"), ("Throughput", "samples_per_s"), ("Peak memory", "memory_max_bytes"))


class Shared(NamedTuple):
    """The page of a link: the report that resolves its text, and who sees what it names."""

    report: Report
    text: str
    viewer: Viewer

    def has(self, directive: str) -> bool:
        """Return whether the text has a directive: a link shows nothing else."""
        return f"{{{{ {directive.strip()} }}}}" in self.text


def shared_of(link: ReportLink) -> Shared:
    """Return what a link to an experiment, a run or a dashboard shows."""
    subject = link.subject
    if isinstance(subject, Experiment):
        return _shared(subject.name, subject, _experiment_text(subject), {subject.pk})
    if isinstance(subject, Run):
        return _shared(f"Run #{subject.number}", subject.experiment, _run_text(subject), {subject.experiment_id})
    assert isinstance(subject, Dashboard)
    of_project = Experiment.objects.filter(project=subject.project_id).values_list("pk", flat=True)
    return _shared(subject.name, subject.experiment, _dashboard_text(subject), set(of_project))


def _shared(title: str, experiment: Experiment | None, text: str, experiments: set[int]) -> Shared:
    viewer = Viewer(AnonymousUser, experiments=frozenset(experiments))
    return Shared(Report(title=title, slug="shared", experiment=experiment), text, viewer)


def _experiment_text(experiment: Experiment) -> str:
    return f"{_plain(experiment.question)}\n\n{{{{ figure throughput }}}}\n\n{{{{ table runs {_COLUMNS} }}}}\n"


def _run_text(run: Run) -> str:
    numbers = [f"{title}: {{{{ value {name} run={run.number} }}}}" for title, name in _NUMBERS if getattr(run, name)]
    curves = f"{{{{ figure series run={run.number} series=step_time_s,loss }}}}"
    return "\n\n".join([_plain(run.label), *numbers, curves])


def _dashboard_text(dashboard: Dashboard) -> str:
    return "\n\n".join(f"## {_plain(panel.title)}\n\n{panel.text}" for panel in panels_of(dashboard))


def _plain(text: str) -> str:
    """Return a text without directives of its own."""
    return text.replace("{{", "{ {")
