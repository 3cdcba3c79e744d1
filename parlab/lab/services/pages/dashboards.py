"""Dashboards: panels of texts, figures, tables and numbers; creating and saving them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

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
SPANS = {"third": 4, "half": 6, "full": 12}
"""Columns of the grid, of 12."""
UNITS = {"low": 5, "usual": 13, "tall": 20}
"""Units of 24 pixels."""
_LEAST_SPAN, _MOST_SPAN, _LEAST_UNITS, _MOST_UNITS = 3, 12, 5, 20
NEW = "new:"
"""How the name of a panel begins that a layout adds: `new:text`."""
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
    columns: int = 0
    """Columns of the grid, where the panel was dragged to a size; 0: those of `width`."""
    rows: int = 0

    @property
    def span(self) -> int:
        return self.columns or SPANS.get(self.width, SPANS["half"])

    @property
    def units(self) -> int:
        return self.rows or UNITS.get(self.height, UNITS["usual"])

    @property
    def directive(self) -> str:
        """The directive of a panel that is one figure; empty for all others."""
        return self._only("figure")

    @property
    def part(self) -> str:
        """The directive of a panel that is one part of a page; empty for all others."""
        return self._only("part")

    @property
    def is_number(self) -> bool:
        """Whether the panel is one value, which is written large."""
        return bool(self._only("value"))

    def _only(self, kind: str) -> str:
        text = self.text.strip()
        is_only = text.startswith(f"{{{{ {kind} ") and text.endswith("}}") and text.count("{{") == 1
        return text[2:-2].strip() if is_only else ""


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


def panel_names(panels: Sequence[Panel]) -> list[str]:
    """Return a name for each panel that stays when panels are moved: of its content, numbered where it repeats."""
    names: list[str] = []
    for panel in panels:
        own = sha256(f"{panel.title}\0{panel.text}".encode()).hexdigest()[:12]
        names.append(f"{own}-{sum(name.startswith(own) for name in names)}")
    return names


@transaction.atomic
def dashboard_arrange(*, dashboard: Dashboard, placed: Sequence[tuple[str, int, int]], revision: int) -> Dashboard:
    """Store the order and the sizes of panels, each (name, columns, rows); panels that are left out are removed.

    A name `new:text` adds a panel of a kind, `new:runs@slug` one about this experiment. Raises Outdated if another
    person saved the dashboard since.
    """
    current = Dashboard.objects.select_for_update().get(pk=dashboard.pk)
    if current.revision != revision:
        raise Outdated("another person changed this dashboard; reload the page")
    stored = panels_of(current)
    by_name = dict(zip(panel_names(stored), stored, strict=True))
    arranged = []
    for name, columns, rows in placed[:MAX_PANELS]:
        kind, _, slug = name.removeprefix(NEW).partition("@")
        if name.startswith(NEW) and kind in KINDS:
            arranged.append(new_panel(kind, Experiment.objects.filter(slug=slug).first() if slug else None))
        elif (panel := by_name.pop(name, None)) is not None:
            span = min(_MOST_SPAN, max(_LEAST_SPAN, columns))
            arranged.append(replace(panel, columns=span, rows=min(_MOST_UNITS, max(_LEAST_UNITS, rows))))
    current.panels, current.revision = [asdict(panel) for panel in arranged], revision + 1
    current.save()
    return current


@transaction.atomic
def dashboard_add(
    *, experiment: Experiment | None, title: str, text: str, user: User, is_low: bool = False
) -> Dashboard:
    """Add a panel to the dashboard of an experiment, its default first, or to the one of no experiment that the person
    saved last; without one, to a new dashboard.
    """
    if experiment is not None:
        guard(experiment)
        found = Dashboard.objects.filter(experiment=experiment).first()
    else:
        found = Dashboard.objects.filter(experiment=None, owner=user).order_by("-saved_at", "-pk").first()
    if found is None:
        found = Dashboard.objects.create(
            project_id=experiment.project_id if experiment else home_project_id(),
            name=experiment.name[:120] if experiment else f"Figures of {user.get_username()}"[:120],
            experiment=experiment,
            panels=[],
            owner=user,
        )
    current = Dashboard.objects.select_for_update().get(pk=found.pk)
    if len(current.panels) >= MAX_PANELS:
        raise ValueError(f"the dashboard {current.name} has {MAX_PANELS} panels; remove one")
    panel = Panel(title[:120], text[:MAX_TEXT])
    if panel.is_number:
        panel = replace(panel, width="third", height="low")
    elif is_low:
        panel = replace(panel, height="low")
    current.panels = [*current.panels, asdict(panel)]
    current.revision += 1
    current.save()
    return current


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
