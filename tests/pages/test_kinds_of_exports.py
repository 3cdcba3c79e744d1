"""Every CSV file of imported numbers, and the API, say how they came about."""

from __future__ import annotations

import csv
import io
from io import BytesIO

import nanoarrow
import pytest
from django.contrib.auth.models import User
from django.test import Client
from nanoarrow import ipc

from parlab.ingest.files.imports import upload_import
from parlab.lab.models import Run

pytestmark = pytest.mark.django_db

BARS = "".join(f"Epoch 0: {n}0%|####      | {n}/9 [00:0{n}<00:09, 1.0{n}s/it, loss=2.{n}]\n" for n in range(1, 9))
MEGATRON = "".join(
    f" iteration {n:8d}/ 100 | elapsed time per iteration (ms): 500.{n} | lm loss: 2.{n} |\n"
    f"after {n} iterations memory (MB) | allocated: 100.5 | max allocated: 20{n}.5 |\n"
    f"time (ms) | forward: 200.{n} | backward: 250.{n}\n"
    for n in range(1, 9)
)


def imported(user: User, log: str) -> Run:
    [made] = upload_import(experiment=None, name="train.log", stream=BytesIO(log.encode()), user=user)
    assert made.experiment is not None
    return made.experiment.runs.get()


def kinds(page: Client, path: str, column: str) -> set[str]:
    response = page.get(path)
    assert response.status_code == 200, path
    content = b"".join(response.streaming_content) if response.streaming else response.content  # type: ignore[attr-defined]
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    assert rows, path
    return {row[column] for row in rows}


@pytest.mark.parametrize(("log", "kind"), [(BARS, "smoothed"), (MEGATRON, "printed")])
def test_the_curves_of_an_imported_run_have_their_kind(page: Client, user: User, log: str, kind: str) -> None:
    run = imported(user, log)
    own = run.get_absolute_url()
    assert kinds(page, f"{own}figures/step-time.csv", "kind") == {kind}
    assert kinds(page, f"{own}figures/series.csv?series=loss", "kind") == {"printed"}
    experiment = run.experiment.get_absolute_url()
    curves = f"{experiment}series.json?format=csv&metric=step_time"
    assert kinds(page, curves, "kind of step_time") == {kind}


def test_memory_and_phases_of_imported_runs_have_their_kind(page: Client, user: User) -> None:
    run = imported(user, MEGATRON)
    figures = f"{run.experiment.get_absolute_url()}figures/"
    assert kinds(page, f"{figures}memory.csv", "kind of memory_peak_bytes") == {"printed"}
    assert kinds(page, f"{figures}phases.csv", "kind of median_s") == {"printed"}
    assert kinds(page, f"{run.get_absolute_url()}figures/phases.csv", "kind") == {"printed"}
    assert kinds(page, f"{run.get_absolute_url()}figures/memory.csv", "kind") == {"printed"}


def test_the_api_says_the_kind_of_a_series(page: Client, user: User) -> None:
    run = imported(user, BARS)
    path = f"/api/experiments/{run.experiment.slug}/runs/{run.number}/series/?metric=step_time_s"
    assert page.get(path).json()["kind"] == "smoothed"
    assert kinds(page, f"{path}&as=csv", "kind") == {"smoothed"}
    arrow = b"".join(page.get(f"{path}&as=arrow").streaming_content)  # type: ignore[attr-defined]
    schema = nanoarrow.ArrayStream(ipc.InputStream.from_readable(io.BytesIO(arrow))).schema
    assert dict(schema.metadata) == {b"kind": b"smoothed"}
    listed = page.get(path.replace("series/?metric=step_time_s", "metrics/")).json()["series"]
    assert {entry["metric"]: entry["kind"] for entry in listed}["loss"] == "printed"


def test_what_parlab_has_measured_has_no_kind(page: Client, four_runs: list[Run]) -> None:
    experiment = four_runs[0].experiment.get_absolute_url()
    for figure in ("memory", "phases"):
        header = page.get(f"{experiment}figures/{figure}.csv").content.decode().splitlines()[0]
        assert "kind" not in header
