"""Selections on parallel axes, and the importance of settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from django.test import Client

from parlab.charts.format import MINUS
from parlab.charts.importance import importances
from parlab.charts.measures import MEASURES
from parlab.charts.points import RunPoint
from parlab.charts.sweeps.parallel import Brush, brush_of, selected
from parlab.lab.models import Run
from parlab.series import store
from parlab.series.columns import Columns

from .test_comparisons import address


def points(settings: Sequence[dict[str, Any]], speeds: Sequence[float]) -> list[RunPoint]:
    return [
        RunPoint(n, "finished", values, 1, samples_per_s=speed)
        for n, (values, speed) in enumerate(zip(settings, speeds, strict=True))
    ]


def test_ranges_of_numbers_and_of_texts_select_runs() -> None:
    runs = points([{"size": n, "kind": kind} for n, kind in enumerate(["a", "b", "c", "a"])], [1.0, 2.0, 3.0, 4.0])
    assert selected(runs, []) == [True] * 4
    assert selected(runs, [Brush("size", "1", "2")]) == [False, True, True, False]
    assert selected(runs, [Brush("kind", "c", "b")]) == [False, True, True, False]
    assert selected(runs, [Brush("samples_per_s", "2.5", "9")]) == [False, False, True, True]
    assert selected(runs, [Brush("size", "x", "2"), Brush("none", "1", "2")]) == [True] * 4
    assert [brush_of(text) for text in ("", "a:", "a:1", "a:1..")] == [None] * 4
    assert brush_of("train.micro_batch_size:1..4") == Brush("train.micro_batch_size", "1", "4")


def test_importance_orders_settings_and_states_its_weaknesses() -> None:
    random = np.random.default_rng(3)
    settings = [
        {"size": n, "double": 2 * n, "kind": "ab"[n % 2], "word": "xyz"[n % 3], "luck": int(random.integers(99))}
        for n in range(12)
    ]
    result = importances(points(settings, [float(n**2) for n in range(12)]), MEASURES["samples_per_s"])
    rows = {row.name: row for row in result.rows}
    assert rows["size"].text == "+1.00"
    assert not rows["size"].is_chance
    assert rows["size"].weaknesses == ("changes with double (1.0)",)
    assert rows["luck"].is_chance
    assert rows["kind"].order == "a, b"
    assert result.left_out == ["Word"]
    few = importances(points([{"size": n} for n in range(4)], [4.0, 3.0, 2.0, 1.0]), MEASURES["samples_per_s"])
    assert [(row.text, row.is_chance, row.weaknesses) for row in few.rows] == [
        (f"{MINUS}1.00", True, ("few points (4)",))
    ]


def test_five_points_in_order_are_no_chance_and_opposed_settings_are_named() -> None:
    settings = [{"size": n, "rest": 9 - n} for n in range(5)]
    result = importances(points(settings, [1.0, 2.0, 3.0, 4.0, 5.0]), MEASURES["samples_per_s"])
    assert [(row.name, row.is_chance, row.weaknesses) for row in result.rows] == [
        ("size", False, ("few points (5)", f"changes with rest ({MINUS}1.0)")),
        ("rest", False, ("few points (5)", f"changes with size ({MINUS}1.0)")),
    ]


@pytest.mark.django_db
def test_a_selection_filters_tables_and_curves_and_stays_in_the_address(page: Client, four_runs: list[Run]) -> None:
    url = address(*four_runs)
    first = page.get(f"{url}&axis=train.micro_batch_size&low=1&high=1&curve=loss")
    assert first.status_code == 302
    assert "brush=train.micro_batch_size:1..1" in first.headers["Location"]
    response = page.get(f"{url}&brush=train.micro_batch_size:1..1")
    chosen = [run.pk for run in four_runs if run.point["train.micro_batch_size"] == 1]
    assert [run.pk for run in response.context["comparison"].runs] == chosen
    assert f"{len(chosen)} of 4 selected" in response.content.decode()
    figure = url.replace("/compare/", "/compare/figures/parallel.json")
    answer = json.loads(page.get(f"{figure}&brush=train.micro_batch_size:1..1").content)
    assert sum(trace["opacity"] == 1 for trace in answer["figure"]["data"]) == len(chosen)
    assert f"{len(chosen)} of 4 runs are selected" in answer["caption"]
    nothing = page.get(f"{url}&brush=train.micro_batch_size:5..9").content.decode()
    assert "No run lies within all selected ranges" in nothing


@pytest.mark.django_db
def test_several_curves_and_all_ranks_share_one_figure(page: Client, four_runs: list[Run]) -> None:
    steps = np.arange(1, 11)
    for place, run in enumerate(four_runs[:2]):
        for rank in range(2):
            values = np.full(10, 1.0 + place + rank / 10)
            series = {
                (metric, rank): Columns(steps, (1.76e9 + steps).astype(np.float64), values)
                for metric in ("step_time_s", "loss")
            }
            store.append(run.current_attempt().pk, series)
    url = address(*four_runs[:2]).replace("/compare/", "/compare/figures/curves.json")
    drawn = json.loads(page.get(f"{url}&curve=step-time&curve=loss&ranks=all").content)["figure"]
    assert [trace["yaxis"] for trace in drawn["data"]] == ["y"] * 4 + ["y2"] * 4
    assert [trace["showlegend"] for trace in drawn["data"]] == [True] * 4 + [False] * 4
    assert drawn["data"][1]["name"].endswith("rank 1")
    assert drawn["layout"]["hovermode"] == "x unified"
    assert drawn["layout"]["yaxis2"]["domain"][0] == 0
    numbers = page.get(url.replace(".json", ".csv") + "&curve=step-time&curve=loss").content.decode().splitlines()
    assert numbers[0] == "series,run,step,unix_time_s,value"
    assert len(numbers) == 1 + 2 * 2 * 10
