"""Server time of pages and comparisons with 10,000 runs and 100 million points of series."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse

from parlab.lab.models import Attempt, Dashboard, Experiment, Run
from parlab.lab.services.pages.dashboards import dashboard_create
from parlab.series import store
from parlab.series.columns import Columns
from parlab.series.models import SeriesChunk, SeriesLevel
from tests.bench.lists import PLAIN_FILES, RUNS, fill_runs
from tests.bench.result import Result, Scale

LONG_RUNS, POINTS = 1_000, 100_000
"""Runs with series, and the points of each: 100 million together."""
COMPARED = 100
PAGES = (
    "home", "experiments", "compare", "nodes", "plan", "simulate", "timelines", "tune", "watches", "import",
    "log-formats", "questions", "advice", "rules", "dashboards", "sweep-new", "reports", "report-new",
    "account", "notifications",
)  # fmt: skip
OF_EXPERIMENT = (
    "experiment", "experiment-live", "experiment-table", "experiment-time", "experiment-compare",
    "findings", "sweep-edit", "names", "report", "network", "gallery",
)  # fmt: skip
OF_RUN = ("run", "run-live", "run-log", "run-ranks", "run-engine", "run-time", "run-difference", "run-traces")
SLOWEST_SHOWN = 5
ASKED = {"plan": "?layers=96"}
"""What a page is asked, which leads elsewhere without."""


def pages_p95_ms(scale: Scale) -> Result:
    """Measure the 95th percentile over all pages, without the planner's search; compare with the median."""
    client = _client(scale)
    repeats = scale.repeats(9)
    with override_settings(STORAGES=PLAIN_FILES):
        times = {address: _times(client, address, repeats) for address in _addresses()}
    every = [value for own in times.values() for value in own]
    slowest = sorted(times, key=lambda address: -float(np.median(times[address])))[:SLOWEST_SHOWN]
    named = ", ".join(f"{address.split('?')[0]} {float(np.median(times[address])):,.0f}" for address in slowest)
    middle = float(np.median(every))
    return Result(float(np.percentile(every, 95)), f"{middle:,.0f} ms median; slowest: {named}", repeats)


def compare_100_runs_ms(scale: Scale) -> Result:
    """Measure the page of a comparison of 100 runs; compare with its curves, 10 million points, as JSON."""
    client = _client(scale)
    repeats = scale.repeats(5)
    ids = ",".join(map(str, _long_runs()[: scale.of(COMPARED) if not scale.is_quick else 2]))
    with override_settings(STORAGES=PLAIN_FILES):
        page = float(np.median(_times(client, f"{reverse('compare')}?runs={ids}", repeats)))
        curves = reverse("compare-figure", args=["curves"])
        drawn = float(np.median(_times(client, f"{curves}?runs={ids}&curve=loss", repeats)))
    return Result(page, f"{drawn:,.0f} ms for its curves", repeats, drawn / page)


def _times(client: Client, address: str, repeats: int) -> list[float]:
    """Return the milliseconds of each request after the first, which loads templates."""
    times = []
    for _ in range(repeats + 1):
        cache.clear()
        began = time.perf_counter()
        response = client.get(address)
        times.append((time.perf_counter() - began) * 1e3)
        if response.status_code not in (200, 204):
            raise RuntimeError(f"{address} returned status {response.status_code}")
    return times[1:]


def _addresses() -> list[str]:
    run = Run.objects.select_related("experiment").get(pk=_long_runs()[0])
    ids = ",".join(map(str, _long_runs()[:20]))
    dashboard = Dashboard.objects.order_by("pk").first()
    return [
        *(f"{reverse(name)}{ASKED.get(name, '')}" for name in PAGES),
        f"{reverse('experiments')}?show=runs",
        f"{reverse('compare')}?runs={ids}",
        *(reverse(name, args=[run.experiment.slug]) for name in OF_EXPERIMENT),
        *(reverse(name, args=[run.experiment.slug, run.number]) for name in OF_RUN),
        *(reverse(name, args=[dashboard.pk]) for name in ("dashboard", "dashboard-edit") if dashboard),
    ]


def _client(scale: Scale) -> Client:
    user, _ = get_user_model().objects.get_or_create(
        username="bench", defaults={"is_staff": True, "is_superuser": True}
    )
    if not user.is_superuser:
        user.is_staff = user.is_superuser = True
        user.save()
    if not Experiment.objects.filter(slug="scaling-0").exists():
        fill_runs(user, scale.of(RUNS))
    if not _long_runs():
        finished = Run.objects.filter(state="finished", experiment__slug__startswith="scaling-").order_by("pk")
        fill_series(list(finished[: scale.of(LONG_RUNS)]), scale.of(POINTS))
    if not Dashboard.objects.exists():
        dashboard_create(name="Bench", experiment=Experiment.objects.get(slug="scaling-0"), user=user)
    client = Client(SERVER_NAME="127.0.0.1")
    with override_settings(STORAGES=PLAIN_FILES):
        client.force_login(user)
    return client


def _long_runs() -> list[int]:
    """Return the runs with series."""
    attempts = Attempt.objects.filter(run__experiment__slug__startswith="scaling-").order_by("pk")
    return list(attempts.values_list("run_id", flat=True))


def fill_series(finished: Sequence[Run], points: int) -> None:
    """Store the series of one run through the store, and copy its rows for the others."""
    Attempt.objects.bulk_create(
        [Attempt(run=run, number=1, state="finished", summary=run.summary, last_step=points) for run in finished]
    )
    first, *others = Attempt.objects.filter(run__in=finished).order_by("pk").values_list("pk", flat=True)
    steps = np.arange(1, points + 1)
    loss = 10 / np.sqrt(steps) + np.random.default_rng(0).normal(0, 0.02, points)
    store.append(first, {("loss", 0): Columns(steps, (1.76e9 + 0.5 * steps).astype(np.float64), loss)})
    for model in (SeriesChunk, SeriesLevel):
        _copy_rows(model._meta.db_table, [str(field.column) for field in model._meta.fields], first, others)


def _copy_rows(table: str, columns: Sequence[str], first: int, others: Sequence[int]) -> None:
    copied = [column for column in columns if column not in ("id", "attempt_id")]
    names = ", ".join(f'"{column}"' for column in copied)
    with connection.cursor() as cursor:
        for other in others:
            cursor.execute(
                f'INSERT INTO "{table}" (attempt_id, {names}) SELECT %s, {names} FROM "{table}" WHERE attempt_id = %s',
                [other, first],
            )
