"""Dashboards: panels of texts, figures, tables and numbers; creating and saving them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from django.contrib.auth.models import User
from django.db import transaction

from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.lab.models import Dashboard, Experiment
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services.access.rights import guard

MAX_PANELS = 40
MAX_TEXT = 20_000
WIDTHS = (("third", "a third"), ("half", "a half"), ("full", "full width"))
HEIGHTS = (("low", "low"), ("usual", "usual"), ("tall", "tall"))
_COLUMNS = 'columns="Run=run, Point=label, step_time_s, Throughput=samples_per_s samples/s"'
_EARLIER_COLUMNS = 'columns="Run=run, Point=label, Step=step_time_s ms .1, Throughput=samples_per_s"'
"""Of the table of runs in dashboards that an earlier version made."""

KINDS: dict[str, tuple[str, str]] = {
    **{
        f"figure-{name}": (f"Figure: {figure.title}", f"{{{{ figure {name} }}}}")
        for name, figure in EXPERIMENT_FIGURES.items()
    },
    "runs": ("Table: runs", f"{{{{ table runs {_COLUMNS} }}}}"),
    "fastest": ("Number: shortest step", "{{ value step_time_s aggregate=min }}"),
    "throughput": ("Number: highest throughput", "{{ value samples_per_s aggregate=max }}"),
    "memory": ("Number: largest memory", "{{ value memory_max_bytes aggregate=max }}"),
    "series": ("Figure: curves of a run", "{{ figure series run=1 series=step_time_s,loss }}"),
    "text": ("Text", "Write **Markdown** here."),
}
"""Kind of a new panel -> (title in the menu, its text): Markdown with the directives of reports."""
FIRST_PANELS = ("fastest", "throughput", "figure-throughput", "runs")


@dataclass(frozen=True)
class Panel:
    """One panel: a text with directives, and its place."""

    title: str
    text: str
    width: str = "half"
    height: str = "usual"

    @property
    def directive(self) -> str:
        """The directive of a panel that is one figure; empty for all others."""
        text = self.text.strip()
        is_figure = text.startswith("{{ figure ") and text.endswith("}}") and text.count("{{") == 1
        return text[2:-2].strip() if is_figure else ""


class Outdated(ValueError):
    """Another person saved the dashboard in the meantime."""


def panels_of(dashboard: Dashboard) -> list[Panel]:
    panels = (Panel(**panel) for panel in dashboard.panels)
    return [replace(panel, text=panel.text.replace(_EARLIER_COLUMNS, _COLUMNS)) for panel in panels]


def new_panel(kind: str, experiment: Experiment | None = None) -> Panel:
    """Return a panel of a kind, of an experiment other than that of the dashboard if one is named."""
    title, text = KINDS[kind]
    if experiment is not None and "}}" in text:
        text = text.replace(" }}", f" experiment={experiment.slug} }}}}")
    is_number = title.startswith("Number")
    name = title.partition(": ")[2] or title
    shown = name if experiment is None else f"{name}, {experiment.name}"[:120]
    is_wide = kind.startswith("figure-") and EXPERIMENT_FIGURES[kind.removeprefix("figure-")].is_wide
    width = "third" if is_number else "full" if is_wide or kind == "runs" else "half"
    return Panel(shown[:1].upper() + shown[1:], text, width, "low" if is_number else "usual")


@transaction.atomic
def dashboard_save(
    *, dashboard: Dashboard, name: str, panels: Sequence[Panel], is_default: bool, revision: int
) -> Dashboard:
    """Save a dashboard that was read at a revision; raises Outdated if another person saved it since."""
    current = Dashboard.objects.select_for_update().get(pk=dashboard.pk)
    if current.revision != revision:
        raise Outdated("another person saved this dashboard; reload the page and repeat the change")
    if not name:
        raise ValueError("the dashboard needs a name; enter one")
    if is_default and current.experiment_id:
        Dashboard.objects.filter(experiment=current.experiment_id).exclude(pk=current.pk).update(is_default=False)
    current.name, current.panels = name[:120], [asdict(panel) for panel in panels]
    current.is_default, current.revision = is_default and bool(current.experiment_id), revision + 1
    current.save()
    return current


def dashboard_create(*, name: str, experiment: Experiment | None, user: User) -> Dashboard:
    """Create a dashboard, with the usual panels if it belongs to an experiment."""
    if not name:
        raise ValueError("the dashboard needs a name; enter one")
    kinds = FIRST_PANELS if experiment else ()
    # Two numbers share the first row.
    panels = [
        asdict(panel if panel.width == "full" else replace(panel, width="half")) for panel in map(new_panel, kinds)
    ]
    if experiment is not None:
        guard(experiment)
    project = experiment.project_id if experiment else home_project_id()
    return Dashboard.objects.create(
        project_id=project, name=name[:120], experiment=experiment, panels=panels, owner=user
    )
