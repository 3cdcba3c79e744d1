"""What a run's machine was doing, on the run's page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from django.test import Client

from parlab.charts.runs.telemetry import KINDS
from parlab.lab.models import Attempt, Run
from parlab.series import store
from parlab.series.columns import Columns

from .conftest import finish
from .test_experiments import EXPERIMENT, text

pytestmark = pytest.mark.django_db

RUN = f"{EXPERIMENT}runs/1/"


def figures(page: Client) -> list[str]:
    """List the figures of the machine; the page has others beside."""
    names = re.findall(r'data-figure="([^"]+)"', page.get(f"{RUN}system/").content.decode())
    return [name for name in names if name in KINDS]


def samples(attempt: Attempt, metric: str, rank: int, values: list[float]) -> None:
    columns = Columns(np.zeros(len(values), np.int64), np.arange(float(len(values))), np.array(values))
    store.append(attempt.pk, {(metric, rank): columns})


def test_an_ended_run_shows_what_was_sampled(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    samples(attempt, "cpu_pct", -1, [10.0, 20.0])
    samples(attempt, "gpu_util_pct", 0, [70.0, 90.0])
    samples(attempt, "memory_util_pct", 0, [20.0, 30.0])
    Attempt.objects.filter(pk=attempt.pk).update(environment={"gpus_used": [{"index": 6}]})
    finish(attempt)
    assert figures(page) == ["gpu-utilisation", "gpu-memory-traffic", "processor"]
    assert not re.search(r'name="series" value="(cpu|gpu|memory)_', page.get(RUN).content.decode()), "also as a curve"
    drawn = json.loads(page.get(f"{RUN}figures/gpu-utilisation.json").content)
    assert [trace["name"] for trace in drawn["figure"]["data"]] == ["GPU 6"]
    rows = list(csv.DictReader(io.StringIO(page.get(f"{RUN}figures/gpu-utilisation.csv").content.decode())))
    assert [(row["of"], float(row["gpu_util_pct"])) for row in rows] == [("GPU 6", 70.0), ("GPU 6", 90.0)]


def test_a_run_that_has_just_begun_keeps_room_for_what_will_come(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    assert figures(page) == ["network", "processor"]
    Attempt.objects.filter(pk=attempt.pk).update(environment={"gpus_used": [{"index": 0}]})
    assert "power" in figures(page)
    assert json.loads(page.get(f"{RUN}figures/power.json").content)["empty"].startswith("Power: not measured")


def test_an_unknown_figure_is_answered_with_those_there_are(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    make_attempt()
    assert page.get(f"{RUN}figures/mood.json").status_code == 404


def test_mfu_and_utilisation_are_columns_figures_and_numbers_of_a_report(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    run = finish(make_attempt())
    shares = {
        "mfu": 0.1234,
        "hfu": 0.2,
        "tflops_per_gpu": 3.5,
        "model_flops_per_iteration": 1e12,
        "flops_formula": "by a formula",
        "peak": {"flops": 312e12, "precision": "bf16", "source": "A100", "kind": "data sheet"},
        "gpu_utilization": {"mean": 87.5, "min": 80.0, "max": 90.0, "by_gpu": {}},
    }
    Run.objects.filter(pk=run.pk).update(summary={**run.summary, **shares})
    page_text = text(page.get(f"{EXPERIMENT}table/"))
    for expected in ("MFU (%)", "12.3", "GPU utilisation (%)", "87.5"):
        assert expected in page_text
    assert "12.3" in text(page.get(f"{EXPERIMENT}table/?metric=mfu"))
    drawn = json.loads(page.get(f"{EXPERIMENT}figures/utilisation.json").content)
    assert [trace["y"] for trace in drawn["figure"]["data"]] == [[12.34], [20.0], [87.5]]
    run_page = page.get(RUN)
    for expected in ("MFU 12.3 % HFU 20.0 %", "GPU utilisation 87.5 % 80.0\N{EN DASH}90.0"):
        assert expected in text(run_page)
    for expected in ("3.50 TFLOP/s", "by a formula", "312 TFLOP/s in bf16 (A100)"):
        assert expected in run_page.content.decode().replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "| MFU | GPU utilisation |" in page.get(f"{EXPERIMENT}report.md").content.decode()
    listed = page.get(f"/api{EXPERIMENT}runs/").json()["results"][0]
    assert (listed["mfu"], listed["gpu_utilization"]) == (0.1234, 87.5)
    assert page.get(f"/api{EXPERIMENT}runs/1/").json()["summary"]["peak"]["flops"] == 312e12


def test_without_an_mfu_there_is_no_column_for_it(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    finish(make_attempt())
    assert "MFU (%)" not in text(page.get(f"{EXPERIMENT}table/"))
    assert page.get(f"/api{EXPERIMENT}runs/").json()["results"][0]["mfu"] is None


@pytest.mark.slow
def test_long_telemetry_is_thinned_and_refined_with_a_caption_for_the_whole(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt()
    values = np.random.default_rng(0).normal(900.0, 3.0, 5_000)
    values[2_500:2_550] = 100.0
    for rank in range(8):
        samples(attempt, "power_watts", rank, list(values))
    url = f"{RUN}figures/power.json"
    whole = json.loads(page.get(url).content)
    part = json.loads(page.get(url, {"from": "2490", "to": "2600"}).content)
    assert [len(trace["x"]) for trace in whole["figure"]["data"]] == [200] * 8
    assert whole["thinned"]
    assert not part["thinned"]
    assert part["figure"]["data"][0]["x"] == [float(second) for second in range(2_489, 2_602)]
    # The mean is that of all samples, not of those that thinning chose for being far out.
    assert whole["caption"].startswith(f"Mean and range: {values.mean():.0f}")
    assert part["caption"] == whole["caption"]
    assert part["figure"]["layout"]["yaxis"]["title"] == whole["figure"]["layout"]["yaxis"]["title"]
    assert len(page.get(f"{RUN}figures/power.csv").content.decode().splitlines()) == 40_001
