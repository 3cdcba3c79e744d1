from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from parlab.lab.models import Attempt
from parlab.series import log, store
from parlab.series.models import SeriesChunk

from .output import training


def reingest(*runs: str) -> str:
    out = StringIO()
    call_command("reingest", *runs, stdout=out)
    return out.getvalue()


@pytest.fixture
def attempts(make_attempt: Callable[..., Attempt]) -> list[Attempt]:
    result = [make_attempt(), make_attempt(point={"train.seed": 2})]
    for attempt in result:
        log.append_log(attempt.pk, training(3))
    return result


def test_without_a_name_every_run_is_rebuilt(attempts: list[Attempt]) -> None:
    assert reingest() == "Pipeline schedules #1 attempt 1: 39 points\nPipeline schedules #2 attempt 1: 39 points\n"
    for attempt in attempts:
        attempt.refresh_from_db()
        assert attempt.last_step == 3
        assert attempt.summary["steps"]["count"] == 2


def test_only_the_named_run_is_rebuilt(attempts: list[Attempt]) -> None:
    assert reingest("pipeline-schedules/2") == "Pipeline schedules #2 attempt 1: 39 points\n"
    assert store.metrics(attempts[0].pk) == []


def test_the_name_of_an_experiment_selects_its_runs(attempts: list[Attempt]) -> None:
    assert reingest("pipeline-schedules").count("39 points") == 2


def test_a_rebuild_repairs_damaged_series(attempts: list[Attempt]) -> None:
    reingest()
    before = list(SeriesChunk.objects.order_by("attempt", "metric", "rank").values_list("metric", "count", "values"))
    SeriesChunk.objects.filter(metric="loss").update(count=1, values=b"damaged")
    SeriesChunk.objects.filter(metric="warmup").delete()
    reingest()
    after = list(SeriesChunk.objects.order_by("attempt", "metric", "rank").values_list("metric", "count", "values"))
    assert [(metric, count, bytes(values)) for metric, count, values in after] == [
        (metric, count, bytes(values)) for metric, count, values in before
    ]


@pytest.mark.parametrize("name", ["nothing", "pipeline-schedules/9", "pipeline-schedules/x"])
def test_an_unknown_run_is_named_in_the_error(attempts: list[Attempt], name: str) -> None:
    with pytest.raises(CommandError, match=f"no run {name}"):
        reingest(name)
