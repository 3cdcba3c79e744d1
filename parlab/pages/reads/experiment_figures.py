"""The figures of an experiment: the data they are drawn from, and what its page shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from django.core.cache import cache
from django.http import QueryDict
from django.urls import reverse
from django.utils.safestring import mark_safe

from parlab.charts.measures import Available, Options
from parlab.charts.points import RunPoint
from parlab.charts.registry import EXPERIMENT_FIGURES, Figure, Source
from parlab.lab.models import Experiment
from parlab.pages.forms.choices import Select, figure_options, figure_query, figure_selects

POINTS_IN_PAGE = 400
"""Runs up to which a page contains its first figure; drawing more would delay the page."""


class FigureCard(NamedTuple):
    """A figure on the page of an experiment."""

    name: str
    title: str
    is_wide: bool
    json: str
    csv: str
    query: str
    """What a person chose, where the figure has choices."""
    has_choices: bool
    missing: str
    """Why there is nothing to show; empty where there is."""
    answer: str = ""
    """The answer of its address, in the page, so that the first figure needs no further request."""


class ExperimentFigures(NamedTuple):
    """The figures of an experiment, and the fields that change them."""

    cards: list[FigureCard]
    selects: list[Select]

    @property
    def has_data(self) -> bool:
        """Whether any figure has something to show."""
        return any(not card.missing for card in self.cards)

    @property
    def next(self) -> FigureCard | None:
        """Return the figure that the page requests before its scripts run: the first that it does not contain."""
        return next((card for card in self.cards if not card.missing and not card.answer), None)

    @property
    def missing(self) -> list[tuple[str, str]]:
        """List the titles of the figures without data, with what they need; figures.js writes the same line."""
        titles: dict[str, list[str]] = {}
        for card in self.cards:
            if card.missing:
                titles.setdefault(card.missing, []).append(card.title)
        return [(", ".join(group), reason) for reason, group in titles.items()]


def experiment_figures(
    experiment: Experiment, points: Sequence[RunPoint], query: QueryDict, *, has_bandwidth: bool, is_live: bool
) -> ExperimentFigures:
    """Arrange the figures for a page; while runs are active, the selects include those of figures that come later.

    The answer of the first figure is in the page if it follows from these points.
    """
    available = Available(points, figure_options(query), has_bandwidth)
    chosen = figure_query(query)
    cards = []
    fields: set[str] = set()
    for name, figure in EXPERIMENT_FIGURES.items():
        missing = figure.needs(available)
        json, csv = (reverse(f"experiment-{kind}", args=[experiment.slug, name]) for kind in ("figure", "numbers"))
        has_choices = bool(figure.choices)
        cards.append(
            FigureCard(
                name, figure.title, figure.is_wide, json, csv, chosen if has_choices else "", has_choices, missing
            )
        )
        if is_live or not missing:
            fields.update(figure.choices)
    first = next((place for place, card in enumerate(cards) if not card.missing), None)
    if first is not None and len(points) <= POINTS_IN_PAGE:
        figure = EXPERIMENT_FIGURES[cards[first].name]
        if figure.source is Source.POINTS:
            cards[first] = cards[first]._replace(answer=_answer(figure, points, available.options))
    return ExperimentFigures(cards, figure_selects(query, points, fields))


def _answer(figure: Figure, points: Sequence[RunPoint], options: Options) -> str:
    """Draw a figure as JSON for a script element; the same points are drawn once, which takes a third of the page."""
    key = "figure-" + sha256(repr((figure.title, options, points)).encode()).hexdigest()
    answer: str | None = cache.get(key)
    if answer is None:
        answer = figure.drawing(points, options).to_json().translate(_SCRIPT_ESCAPES)
        cache.set(key, answer)
    return mark_safe(answer)  # no character of HTML is left


_SCRIPT_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
