"""The editor of dashboards, and what a page shows of their panels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import zip_longest
from typing import Any, NamedTuple

from django.db.models import Q
from django.http import QueryDict
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from parlab.lab.models import Dashboard, Experiment, Report, Run
from parlab.lab.selectors.runs import model_text
from parlab.lab.services import storable
from parlab.lab.services.pages.dashboards import HEIGHTS, KINDS, MAX_PANELS, MAX_TEXT, WIDTHS, Panel, new_panel
from parlab.publishing.drawn import live_page
from parlab.publishing.resolve import Experiments, RunFilter
from parlab.reports.directives import directive
from parlab.whole_numbers import whole_number

DRAGGED = "dragged"
"""Choice of a width or height that was dragged."""


def panels_of_post(post: QueryDict) -> list[Panel]:
    """Read the panels of the form."""
    widths, heights = dict(WIDTHS), dict(HEIGHTS)
    names = ("title", "text", "width", "height", "columns", "rows")
    rows = zip_longest(*(post.getlist(name) for name in names), fillvalue="")
    return [
        Panel(
            storable.text(title).strip()[:120],
            storable.text(text).replace("\r\n", "\n")[:MAX_TEXT],
            width if width in widths else "half",
            height if height in heights else "usual",
            # A size that was dragged holds until another one is chosen in the form.
            (whole_number(span, 2) or 0) if width == DRAGGED else 0,
            (whole_number(unit, 2) or 0) if height == DRAGGED else 0,
        )
        for title, text, width, height, span, unit in rows
    ][:MAX_PANELS]


def rearranged(panels: Sequence[Panel], action: str, place: int) -> list[Panel]:
    """Return the panels after one was moved, resized, copied or removed."""
    result = list(panels)
    if not 0 <= place < len(result):
        return result
    if action == "remove":
        del result[place]
    elif action == "copy":
        result.insert(place + 1, replace(result[place], title=f"{result[place].title} (copy)"[:120]))
    elif action in ("up", "down"):
        panel = result.pop(place)
        result.insert(max(0, place - 1) if action == "up" else place + 1, panel)
    elif action == "wider":
        names = [name for name, _ in WIDTHS]
        result[place] = replace(result[place], width=names[(names.index(result[place].width) + 1) % len(names)])
    return result


class Chosen(NamedTuple):
    """The values of the variables of a dashboard; its address holds them."""

    experiment: Experiment | None = None
    tag: str = ""
    hours: int = 0
    """Of the time range until now; 0: all."""
    model: str = ""
    refresh: int = 0
    """Seconds after which the page reads its numbers again; 0: never."""

    @property
    def only(self) -> RunFilter:
        return RunFilter(self.tag, timezone.now() - timedelta(hours=self.hours) if self.hours else None, self.model)

    @property
    def query(self) -> str:
        """The variables as the query of an address."""
        stated: dict[str, str | int] = {
            "experiment": self.experiment.slug if self.experiment else "",
            "tag": self.tag,
            "hours": self.hours,
            "model": self.model,
            "refresh": self.refresh,
        }
        return urlencode({name: value for name, value in stated.items() if value})


def models_of(dashboard: Dashboard, panels: Sequence[Panel], chosen: Chosen) -> list[str]:
    """Return what the runs train that the panels are about."""
    named = {slug for panel in panels for slug in _NAMED.findall(filled(panel.text, chosen.experiment))}
    own = chosen.experiment or dashboard.experiment
    runs = Run.objects.filter(
        Q(experiment=own) | Q(experiment__slug__in=named) if own else Q(experiment__slug__in=named)
    )
    rows = runs.order_by().values_list("resolved__model", "resolved__parallel__engine").distinct()[:MAX_MODELS]
    texts = {model_text({"model": model or {}, "parallel": {"engine": engine}}) for model, engine in rows}
    return sorted(texts - {""})


MAX_MODELS = 200
"""Configurations of models that are read for the choice of a model."""
_NAMED = re.compile(r"\bexperiment=([\w-]+)")


def as_report(dashboard: Dashboard, experiment: Experiment | None = None) -> Report:
    """Return an unsaved report for resolving the directives of panels, about another experiment if one is chosen."""
    own = experiment or dashboard.experiment
    return Report(title=dashboard.name, slug=f"dashboard-{dashboard.pk}", experiment=own)


def filled(text: str, experiment: Experiment | None) -> str:
    """Put the chosen experiment into the directives that name `$experiment`; without one they use the default."""
    return text.replace("experiment=$experiment", f"experiment={experiment.slug}" if experiment else "")


def panel_body(
    dashboard: Dashboard, panel: Panel, loaded: Experiments, chosen: Chosen | None = None
) -> SafeString | str:
    """Return the content of a panel other than a single figure as HTML, or the problem with its text.

    All panels of a page share what is `loaded`.
    """
    url = reverse("dashboard-figure", args=[dashboard.pk])
    variables = chosen or Chosen()
    page = live_page(as_report(dashboard, variables.experiment), panel.text, url, loaded, variables.only)
    return page.problem or page.body


def figure_problem(panel: Panel) -> str:
    """Return what is wrong with the directive of a panel with a figure; empty for a valid one."""
    return directive(panel.directive).problem or ""


class Offer(NamedTuple):
    """A kind of panel in the drawer."""

    kind: str
    title: str
    panel: Panel


def offers() -> list[Offer]:
    """Return the kinds of panels, numbers first, then tables, figures and text."""
    rows = [Offer(kind, title, new_panel(kind)) for kind, (title, _) in KINDS.items()]
    return sorted(rows, key=lambda row: _FIRST.index(row.title[0]))


_FIRST = "NTF"
"""First letters of the titles: number, table and text, figure."""


def editor_choices() -> dict[str, Any]:
    return {
        "dragged": DRAGGED,
        "widths": WIDTHS,
        "heights": HEIGHTS,
        "kinds": [(kind, title) for kind, (title, _) in KINDS.items()],
    }
