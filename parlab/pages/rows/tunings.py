"""A published autotuning as a study: its spaces, its best setting, and the improvement over the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import duration, exact
from parlab.formats.documents.tables import experiment_settings
from parlab.ingest.readings.result_tables import is_tuning_summary
from parlab.lab.selectors.figures import figure_value

_TOTAL = "global"
_TITLES = {
    "zero_stage": "ZeRO stage",
    "micro_batch_size": "micro batch size",
    "gradient_accumulation_steps": "gradient accumulation",
}


class Space(NamedTuple):
    """One tuning space: the experiments that its tuner ran in it, and the best of them."""

    name: str
    experiments: str
    best: str
    best_name: str
    settings: str
    is_best: bool


class Tuning(NamedTuple):
    """The outcome of a tuner, as a file states it."""

    source: int
    line: int
    best: Space
    spaces: list[Space]
    experiments: str
    """Of all spaces."""
    duration: str
    improvement: str
    """Over the baseline, as the file states it."""


def tuning_of(source: int, document: Mapping[str, Any]) -> Tuning | None:
    """Return the tuning that a document summarises; None if it has no table of tuning spaces."""
    for table in document.get("tables") or []:
        if not is_tuning_summary(table["columns"]):
            continue
        columns = [str(column).strip().lower() for column in table["columns"]]
        spaces = [space for row in table["rows"] if (space := _space(columns, row)) is not None]
        own = [space for space in spaces if space.name != _TOTAL]
        total = next((space for space in spaces if space.name == _TOTAL), None)
        best = total or max(own, key=lambda space: _metric_value(space.best), default=None)
        if best is None:
            continue
        figures = document.get("figures") or {}
        return Tuning(
            source,
            table["line"],
            best,
            [space._replace(is_best=space.best_name == best.best_name) for space in own],
            (total.experiments if total else "") or _figure(figures, "tuning_experiments"),
            _duration(figures),
            _improvement(figures),
        )
    return None


def _space(columns: Sequence[str], row: Sequence[Mapping[str, Any]]) -> Space | None:
    cells = {column: str(cell.get("text", "")) for column, cell in zip(columns, row, strict=False)}
    name = cells.get("tuning_space", "")
    if not name:
        return None
    best_name = cells.get("best_exp_name", "")
    settings = experiment_settings(best_name) or {}
    text = ", ".join(f"{title} {settings[key]}" for key, title in _TITLES.items() if key in settings)
    return Space(name, cells.get("num_experiments", ""), cells.get("best_metric_val", ""), best_name, text, False)


def _metric_value(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _first(figures: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    stated = figures.get(name) or []
    return stated[0] if stated and stated[0].get("value") is not None else None


def _figure(figures: Mapping[str, Any], name: str) -> str:
    figure = _first(figures, name)
    return figure_value(name, figure) if figure else ""


def _duration(figures: Mapping[str, Any]) -> str:
    figure = _first(figures, "tuning_duration_s")
    return duration(float(figure["value"])) if figure else ""


def _improvement(figures: Mapping[str, Any]) -> str:
    name = next((name for name in figures if "improvement" in name and "baseline" in name), "")
    figure = _first(figures, name) if name else None
    return f"{exact(float(figure['value']))}\N{MULTIPLICATION SIGN}" if figure else ""
