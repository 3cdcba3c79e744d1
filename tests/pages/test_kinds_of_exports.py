"""Every CSV file of imported numbers, and the API, say how they came about."""

from __future__ import annotations

import csv
import io
from io import BytesIO
from urllib.parse import urlencode

import nanoarrow
import pytest
from django.contrib.auth.models import User
from django.test import Client
from nanoarrow import ipc

from parlab.charts.points import RunPoint, Spread, with_kinds
from parlab.ingest.files.imports import upload_import
from parlab.lab.models import Run
from parlab.lab.services.reports import report_create

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


def test_compared_curves_and_results_have_their_kind(page: Client, user: User) -> None:
    runs = [imported(user, BARS), imported(user, MEGATRON), imported(user, BARS.replace("loss=2", "loss=3"))]
    address = "/compare/figures/{}.csv?runs=" + ",".join(str(run.pk) for run in runs)
    assert kinds(page, address.format("curves") + "&curve=step-time", "kind") == {"smoothed", "printed"}
    assert kinds(page, address.format("curves") + "&curve=step-time&curve=loss", "kind") == {"smoothed", "printed"}
    assert kinds(page, address.format("parallel"), "kind of Step time (s)") == {"smoothed", "printed"}


def test_the_series_of_many_runs_have_their_kind_in_arrow(page: Client, user: User, four_runs: list[Run]) -> None:
    run = imported(user, BARS)
    names = [f"{each.experiment.slug}:{each.number}" for each in (run, four_runs[0])]
    asked = "&".join(f"run={name}" for name in names)
    arrow = page.get(f"/api/series/?{asked}&metric=step_time_s&metric=loss&as=arrow").content
    rows = nanoarrow.ArrayStream.from_readable(arrow).read_all().to_pylist()
    found = {(row["run"] == names[0], row["metric"], row["kind"]) for row in rows}
    assert {(True, "step_time_s", "smoothed"), (True, "loss", "printed")} <= found
    assert {kind for is_imported, _, kind in found if not is_imported} <= {""}


def test_bandwidths_of_files_have_their_kind(page: Client, user: User) -> None:
    table = (
        "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
        "   134217728      33554432   float     sum   1400.0   95.87  167.77  1e-06   1390.0   96.56  168.98  1e-06\n"
        "   268435456      67108864   float     sum   2700.0   99.42  173.99  1e-06   2680.0  100.16  175.29  1e-06\n"
    )
    run = imported(user, table)
    assert kinds(page, f"{run.experiment.get_absolute_url()}figures/bandwidth.csv", "kind") == {"printed"}


def test_a_map_of_measures_over_two_axes_has_the_kind_of_any_measure() -> None:
    averaged = RunPoint(
        1, "finished", {}, 8, step_time_s=Spread(2.0), is_printed=True, kinds={"step_time_s": "average"}
    )
    table = with_kinds(["run", "step_time", "ms_per_sample"], [[1, 2.0, 31.25]], [averaged])
    assert table.rows == [[1, 2.0, 31.25, "average", "derived"]]


def test_a_figure_of_an_imported_run_in_a_report_has_its_kind(page: Client, user: User) -> None:
    run = imported(user, BARS)
    report = report_create(title="Bars", text="", experiment=run.experiment, user=user)
    asked = {"d": f"figure step-time run={run.number}", "format": "csv"}
    assert kinds(page, f"{report.get_absolute_url()}figure/?{urlencode(asked)}", "kind") == {"smoothed"}


def test_what_parlab_has_measured_has_no_kind(page: Client, four_runs: list[Run]) -> None:
    experiment = four_runs[0].experiment.get_absolute_url()
    for figure in ("memory", "phases"):
        header = page.get(f"{experiment}figures/{figure}.csv").content.decode().splitlines()[0]
        assert "kind" not in header
