"""The grid of panels of an experiment: which it shows, which can be added, and what others need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from django.http import QueryDict
from django.urls import reverse

from parlab.charts.axes import GPUS
from parlab.charts.measures import DEFAULT, MEASURES, Available
from parlab.charts.panels import against_axis
from parlab.charts.panels.catalogue import PANELS, Panel
from parlab.charts.panels.frame import MAX_ROWS, Runs, Size
from parlab.charts.points import RunPoint
from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.charts.svg import Svg
from parlab.lab.models import Experiment, Run
from parlab.lab.selectors.analysis.sweep import run_points
from parlab.lab.services.pages.panel_layouts import Placed
from parlab.pages.forms.choices import Select, figure_options, figure_query, figure_selects
from parlab.pages.reads import pinned_panels as pinned
from parlab.pages.reads.experiment_runs import ListedRuns
from parlab.pages.reads.experiment_series import METRICS, metric_of
from parlab.publishing.figures import compared_curves as curves
from parlab.publishing.figures.bandwidths import FORMATS
from parlab.publishing.figures.run_curves import series_names
from parlab.series import store
from runners.config import engine_of

CURVE, FIGURE, TRIALS = "curve", "figure", "trials"
"""Kinds of panels beside those that the server draws: `curve:loss`, `figure:efficiency`, `trials:3`."""
MAX_STEPS = 100
"""Steps of a run that are drawn as strokes; more cannot be told apart."""
STEPS = ("step_time_s",)
MAX_TRIALS = 2
_REPLACED = ("throughput", "heatmap", "memory", "phases")
"""Figures whose place a panel of the same numbers takes; they are offered as further views of them."""


class PanelView(NamedTuple):
    name: str
    kind: str
    """curve, figure or drawn."""
    title: str
    unit: str
    width: int
    height: int
    url: str
    """Where its curves, its figure or its drawing come from."""
    numbers: str
    """The address of its CSV; empty without one."""
    drawing: Svg | None = None
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""
    selects: Sequence[Select] = ()
    """What a person may choose of a figure; the address holds it."""
    directive: str = ""
    """What shows it in a report; empty if reports cannot."""


class Offer(NamedTuple):
    name: str
    title: str
    group: str
    width: int
    height: int


class Panels(NamedTuple):
    views: list[PanelView]
    offers: list[Offer]
    more: int
    """Series that are found by typing only."""
    missing: list[tuple[str, str]]
    """Titles of panels without data, and what they need."""

    @property
    def has_curves(self) -> bool:
        return any(view.kind == CURVE for view in self.views)

    @property
    def has_figures(self) -> bool:
        return any(view.kind == FIGURE for view in self.views)

    @property
    def first_figure(self) -> str:
        """The address of the figure that a person sees first, which the page requests at once; empty without one."""
        return next((view.url for view in self.views[:_SEEN_FIRST] if view.kind == FIGURE), "")


_SEEN_FIRST = 3
"""Panels that stand on the first screen."""


SERIES_OFFERED = 100
"""Series that the menu lists; a log may have thousands."""


class Grid:
    """Arranges the panels of the runs of an experiment."""

    def __init__(
        self,
        experiment: Experiment,
        runs: Sequence[Run],
        listed: ListedRuns,
        query: QueryDict,
        points: Sequence[RunPoint] | None = None,
    ) -> None:
        self.experiment, self.runs, self.query = experiment, runs, query
        self.data = runs_of(listed)
        self.metrics = _metrics(runs)
        self.searches = [run for run in runs if engine_of(run.resolved).searches_capacity and run.is_final]
        has_bandwidth = any(engine_of(run.resolved).measures_bandwidth for run in runs) or (
            experiment.sources.filter(format__in=FORMATS).exists()
        )
        self.available = Available(run_points(runs) if points is None else points, figure_options(query), has_bandwidth)
        self._reasons: dict[str, str] = {}

    def _needs(self, name: str) -> str:
        """Return why a panel or a `figure:…` has nothing to draw, or an empty string; each is asked once."""
        if name not in self._reasons:
            kind, _, figure = name.partition(":")
            self._reasons[name] = (
                EXPERIMENT_FIGURES[figure].needs(self.available) if kind == FIGURE else PANELS[name].needs(self.data)
            )
        return self._reasons[name]

    def panels(self, layout: Sequence[Placed] | None) -> Panels:
        """Return the panels of a layout, or the usual ones; those without data are only named."""
        placed = self.usual() if layout is None else layout
        views = [self._pinnable(view) for panel in placed if (view := self.view(panel)) is not None]
        offers = self.offers({view.name for view in views})
        return Panels(views, offers, max(0, len(self._printed()) - SERIES_OFFERED), self.missing())

    def usual(self) -> list[Placed]:
        """Return the panels of a page that nobody has arranged."""
        wide = [Placed(f"{CURVE}:{name}", 6, 12) for name in ("loss", "step_time") if self.has_curve(name)]
        if len(wide) == 1:
            wide = [wide[0]._replace(width=12)]
        first = [f"{FIGURE}:{name}" for name in self._answering()]
        drawn = [panel for panel in PANELS.values() if not self._needs(panel.name)]
        thirds = [panel for panel in drawn if panel.width == 4]
        halves = [panel for panel in drawn if panel.width == 6]
        first += [f"{TRIALS}:{run.number}" for run in self.searches[:MAX_TRIALS]]
        usual = [*wide, *(Placed(name, 12 if len(first) % 2 else 6, 14) for name in first)]
        width = 12 // max(1, len(thirds))
        height = max((panel.height(self.data) for panel in thirds), default=0)
        usual += [Placed(panel.name, max(4, width), height) for panel in thirds]
        tall = max((panel.height(self.data) for panel in halves), default=0)
        return usual + [Placed(panel.name, 6 if len(halves) > 1 else 12, tall) for panel in halves]

    def _answering(self) -> list[str]:
        """Return the figures that answer this kind of question beside the usual panels."""
        answering = []
        axis = against_axis.axis_of(self.data) if self.data.measured else None
        if axis is not None and axis.field == GPUS:
            answering.append("efficiency")
        if self.available.has_bandwidth:
            answering.append("bandwidth")
        return [name for name in answering if not self._needs(f"{FIGURE}:{name}")]

    def has_curve(self, name: str) -> bool:
        return any(metric in self.metrics for metric in metric_of(name).names)

    def view(self, placed: Placed) -> PanelView | None:
        """Return a panel with its content; None without data."""
        kind, _, name = placed.name.partition(":")
        if kind == CURVE:
            return self._curve(placed, name) if self.has_curve(name) else None
        if kind == FIGURE:
            figure = EXPERIMENT_FIGURES.get(name)
            return self._figure(placed, name) if figure and not self._needs(placed.name) else None
        if kind == TRIALS:
            return self._trials(placed, name)
        panel = PANELS.get(placed.name)
        return self._drawn(placed, panel) if panel and not self._needs(panel.name) else None

    def _trials(self, placed: Placed, name: str) -> PanelView | None:
        run = next((run for run in self.searches if str(run.number) == name), None)
        if run is None:
            return None
        address, numbers = (self._address(f"run-{kind}", run.number, "capacity") for kind in ("figure", "numbers"))
        title = "Trials" if len(self.searches) == 1 else f"Trials of #{run.number}"
        return PanelView(placed.name, FIGURE, title, "", placed.width, placed.height, address, numbers)

    def _curve(self, placed: Placed, name: str) -> PanelView:
        metric = metric_of(name)
        url = f"{self._address('experiment-series')}?{urlencode({'metric': name})}"
        return PanelView(
            placed.name, CURVE, metric.title, metric.note, placed.width, placed.height, url, f"{url}&format=csv"
        )

    def _figure(self, placed: Placed, name: str) -> PanelView:
        figure = EXPERIMENT_FIGURES[name]
        address, numbers = (
            self._with_version(self._address(f"experiment-{kind}", name)) for kind in ("figure", "numbers")
        )
        chosen = f"&{query}" if figure.choices and (query := figure_query(self.query)) else ""
        selects = figure_selects(self.query, self.available.points, set(figure.choices)) if figure.choices else ()
        return PanelView(
            placed.name,
            FIGURE,
            figure.title,
            "",
            placed.width,
            placed.height,
            address + chosen,
            numbers + chosen,
            selects=selects,
        )

    def _drawn(self, placed: Placed, panel: Panel) -> PanelView:
        url = self._with_version(self._address("experiment-panel", panel.name))
        numbers = self._with_version(self._address("experiment-numbers", panel.numbers)) if panel.numbers else ""
        drawing = None if panel.is_late else panel.draw(self.data, panel.size(placed.width, placed.height))
        return PanelView(
            placed.name,
            "drawn",
            panel.title(self.data),
            panel.unit(self.data),
            placed.width,
            placed.height,
            url,
            numbers,
            drawing,
            panel.legend(self.data) if panel.legend else (),
            self._left_out(panel),
        )

    def _left_out(self, panel: Panel) -> str:
        count = len(self.data.shown) if panel.rows else 0
        return f"The first {MAX_ROWS} of the list; filter or sort it to see others." if count > MAX_ROWS else ""

    def _pinnable(self, view: PanelView) -> PanelView:
        return view._replace(directive=pinned.directive_of(view.name, self.experiment.slug, self.query))

    def _address(self, url: str, *args: str | int) -> str:
        return reverse(url, args=[self.experiment.slug, *args])

    def _with_version(self, address: str) -> str:
        kept = {name: str(self.query[name]) for name in ("version", "number") if self.query.get(name)}
        kept.setdefault("version", "all")
        return f"{address}?{urlencode(kept)}"

    def offers(self, present: set[str]) -> list[Offer]:
        """List what can be added: panels, figures, and the series that the runs printed."""
        drawn = [
            Offer(panel.name, panel.title(self.data), "Panels", panel.width, panel.height(self.data))
            for panel in PANELS.values()
            if not self._needs(panel.name)
        ]
        figures = [
            Offer(
                f"{FIGURE}:{name}",
                figure.title + (" (figure)" if name in _REPLACED else ""),
                "Figures",
                12 if figure.is_wide else 6,
                16,
            )
            for name, figure in EXPERIMENT_FIGURES.items()
            if not self._needs(f"{FIGURE}:{name}")
        ]
        known = [
            Offer(f"{CURVE}:{name}", metric.title, "Series", 6, 12)
            for name, metric in METRICS.items()
            if self.has_curve(name)
        ]
        printed = [_series(name) for name in self._printed()[:SERIES_OFFERED]]
        return [offer for offer in [*drawn, *known, *printed, *figures] if offer.name not in present]

    def _printed(self) -> list[str]:
        """Return the names of the series that the runs printed, beside those that parlab knows."""
        own = {metric for name in METRICS for metric in METRICS[name].names}
        return [name for name in series_names(self.metrics) if name not in own]

    def found(self, text: str) -> list[Offer]:
        """Return the first series with a text in their name among those that `offers` leaves out."""
        names = [name for name in self._printed()[SERIES_OFFERED:] if text.lower() in name.lower()]
        return [_series(name) for name in names[:SERIES_OFFERED]]

    def missing(self) -> list[tuple[str, str]]:
        """List the titles of panels and figures without data, grouped by what they need."""
        titles: dict[str, list[str]] = {}
        for name in ("loss", "step_time"):
            if not self.has_curve(name):
                titles.setdefault("no run has this series", []).append(METRICS[name].title)
        for panel in PANELS.values():
            if reason := self._needs(panel.name):
                titles.setdefault(reason, []).append(panel.title(self.data))
        for name, figure in EXPERIMENT_FIGURES.items():
            if name not in _REPLACED and (reason := self._needs(f"{FIGURE}:{name}")):
                titles.setdefault(reason, []).append(figure.title)
        return [(", ".join(group), reason) for reason, group in titles.items()]


def _series(name: str) -> Offer:
    return Offer(f"{CURVE}:{name}", metric_of(name).title, "Series", 6, 12)


def runs_of(listed: ListedRuns) -> Runs:
    """Return the runs in the order of the list, with the number that it shows."""
    return Runs([row.shown for row in listed.rows], MEASURES[listed.measure or DEFAULT], listed.unit)


def _metrics(runs: Sequence[Run]) -> set[str]:
    names = store.metric_names(list(curves.current_attempts(runs)))
    return set().union(*names.values())


def with_steps(runs: Sequence[Run], data: Runs) -> Runs:
    """Return runs with the durations of their steps, of the slowest rank and without the warm-up."""
    shown = {run.number: run for run in data.shown[:MAX_ROWS]}
    read = [run for run in runs if run.number in shown]
    steps: dict[int, list[float]] = {}
    for place, columns in curves.slowest_ranks(read, STEPS, MAX_STEPS).items():
        run = read[place]
        warm = int(run.resolved.get("train", {}).get("warmup_steps") or 0)
        kept = columns.take(columns.steps > warm) if (columns.steps > warm).any() else columns
        steps[run.number] = [float(value) for value in kept.thinned(MAX_STEPS).values if value == value]
    return data._replace(shown=[run._replace(steps=steps.get(run.number, ())) for run in data.shown])


def panel_drawing(panel: Panel, runs: Sequence[Run], data: Runs, size: Size) -> Svg:
    """Draw a panel in a size, with the steps of the runs where it needs them."""
    return panel.draw(with_steps(runs, data) if panel.is_late else data, size)
