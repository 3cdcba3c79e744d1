"""Advice on the pages: the section of a run, one click, and the record."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.advice.advice import Advice
from parlab.charts.format import DASH
from parlab.lab.models import AdviceTrial, Attempt, Config, Run
from parlab.lab.selectors.analysis.advice import RunAdvice, run_advice
from parlab.lab.services.advice import advice_trial_add
from tests.advice.slow_runs import stored_run

from .test_experiments import text

pytestmark = pytest.mark.django_db


def test_one_click_launches_the_change_and_its_gain_stands_beside_the_prediction(page: Client, slow_run: Run) -> None:
    shown = page.get(f"{slow_run.get_absolute_url()}time/")
    row = next(row for row in shown.context["advice"] if row.title.startswith("Recomputation none"))
    assert row.can_try
    assert row.record == "not tried yet"
    body = text(page.post(f"{slow_run.get_absolute_url()}advice/try/", {"title": row.title}, follow=True))
    trial = AdviceTrial.objects.get()
    changed = trial.changed_run
    assert f"Launched run {changed.number}" in body
    assert changed.resolved["train"]["recompute"] == "none"
    before, after = slow_run.resolved, changed.resolved
    assert {**after, "train": {**after["train"], "recompute": "full"}} == before
    assert "running" in body
    Run.objects.filter(pk=changed.pk).update(state="finished", step_time_s=0.4)
    shown = page.get(f"{slow_run.get_absolute_url()}time/")
    assert shown.context["trials"][0].realised == "+20.0 %"
    record = page.get("/advice/")
    assert [(row.title, row.tried, row.right) for row in record.context["records"]] == [
        ("Recomputation", 1, "1 (100 %)"),
        ("All", 1, "1 (100 %)"),
    ]
    # A second click starts nothing twice.
    page.post(f"{slow_run.get_absolute_url()}advice/try/", {"title": row.title})
    assert AdviceTrial.objects.count() == 1
    assert slow_run.experiment.runs.count() == 2


def test_advice_that_is_not_given_cannot_be_tried(page: Client, viewer: Client, slow_run: Run) -> None:
    address = f"{slow_run.get_absolute_url()}advice/try/"
    assert "is no longer advised" in text(page.post(address, {"title": "Buy more GPUs"}, follow=True))
    assert viewer.post(address, {"title": "x"}).status_code == 403
    assert not any("<button" in str(row) for row in viewer.get(f"{slow_run.get_absolute_url()}time/").context["advice"])
    record = page.get("/advice/")
    assert "No advice tried" in text(record)
    # The replays are a record before anyone has tried.
    replays = {row.title: row for row in record.context["published"]}
    assert replays["Micro batch"].right == "1245 (90.5 %)"
    assert replays["Fewer nodes"].tried == 201


def test_advice_respects_what_the_engine_supports(slow_run: Run) -> None:
    kinds = {row.kind for row in run_advice(slow_run).advice}
    assert "recompute" in kinds
    assert "zero" not in kinds  # engine megatron has no ZeRO


def test_a_changed_run_that_failed_is_no_gain(page: Client, slow_run: Run, user: User) -> None:
    advice = Advice("zero", "ZeRO stage 1", 0.1, 0.0, 0.2, "data", "rule", "evidence", {"parallel.zero_stage": 1})
    advice_trial_add(run=slow_run, changed_run=slow_run, advice=advice, user=user)
    Run.objects.filter(pk=slow_run.pk).update(state="failed")
    shown = page.get("/advice/")
    assert shown.context["trials"][0].verdict == "the changed run ended as failed"
    assert "No changed run has finished" in text(shown)


def test_several_changes_are_one_small_sweep(page: Client, slow_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (recompute,) = (row for row in run_advice(slow_run).advice if row.settings)
    smaller = recompute._replace(kind="micro_batch", title="Micro batch 4", settings={"train.micro_batch_size": 4})
    monkeypatch.setattr("parlab.fleet.trials.run_advice", lambda run: RunAdvice([recompute, smaller], ""))
    titles = [recompute.title, smaller.title]
    body = text(page.post(f"{slow_run.get_absolute_url()}advice/try/", {"title": titles}, follow=True))
    assert "Their gains will appear here" in body
    trials = list(AdviceTrial.objects.order_by("pk"))
    assert [trial.title for trial in trials] == titles
    assert len({trial.changed_run.config_id for trial in trials}) == 1
    values = [trial.changed_run.resolved["train"] for trial in trials]
    assert [(train["recompute"], train["micro_batch_size"]) for train in values] == [("none", 8), ("full", 4)]
    assert "select at least one change" in text(page.post(f"{slow_run.get_absolute_url()}advice/try/", follow=True))


def test_advice_after_a_sweep_starts_from_its_fastest_run(page: Client, slow_run: Run) -> None:
    address = f"{slow_run.experiment.get_absolute_url()}advice/"
    shown = page.get(address, follow=True)
    assert shown.context["run"] == slow_run
    titles = [row.title for row in shown.context["advice"]]
    assert any(title.startswith("Recomputation none") for title in titles)
    # A change that was measured is not advised again.
    advice = next(row for row in run_advice(slow_run).advice if row.kind == "recompute")
    page.post(f"{slow_run.get_absolute_url()}advice/try/", {"title": advice.title})
    Run.objects.filter(pk=AdviceTrial.objects.get().changed_run_id).update(state="finished")
    assert advice.title not in [row.title for row in page.get(address, follow=True).context["advice"]]


def test_an_experiment_without_results_has_no_advice(page: Client, make_config: Callable[..., Config]) -> None:
    experiment = make_config().experiment
    assert "No finished run" in text(page.get(f"{experiment.get_absolute_url()}time/"))


def printed(rows: list[dict[str, object]]) -> str:
    """Return step events as rank 0 prints them."""
    return "".join(json.dumps({"parlab": 1, "t": 1.0, "rank": 0, "event": "step", **row}) + "\n" for row in rows)


def test_a_run_without_steps_has_advice_and_its_gain_is_that_of_its_own_unit(
    page: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    data = {
        "parallel": {"engine": "allreduce", "pipeline_parallel_size": 1, "data_parallel_size": 2},
        "collectives": {"min_bytes": 1024, "max_bytes": 4096},
    }
    rows: list[dict[str, object]] = [{"step": size, "time_s/all-reduce": 1e-3 + size / 1e9} for size in (1024, 4096)]
    run = stored_run(data, printed(rows), make_config, make_attempt)
    assert run.step_time_s is None
    assert run.unit_time_s == pytest.approx((1e-3 + 4096 / 1e9) / 4096 * 2**30)
    shown = page.get(f"{run.get_absolute_url()}time/")
    (row,) = shown.context["advice"]
    assert row.can_try
    assert "no waterfall" in text(shown)
    assert "Time per GiB in the largest messages" in text(shown)
    answer = page.get(f"/api/experiments/{run.experiment.slug}/runs/{run.number}/advice/").json()
    # Latency takes a tenth at 9 MB; 16 MiB is the next size of the series.
    assert answer["advice"][0]["settings"] == {"collectives.max_bytes": 2**24}
    assert answer["advice"][0]["predicted_step_time_s"] == pytest.approx((1e-3 + 2**24 / 1e9) / 2**24 * 2**30)
    swept = page.get(f"{run.experiment.get_absolute_url()}advice/", follow=True)
    assert swept.context["run"] == run
    assert [each.title for each in swept.context["advice"]] == [row.title]
    page.post(f"{run.get_absolute_url()}advice/try/", {"title": row.title})
    changed = AdviceTrial.objects.get().changed_run
    assert changed.resolved["collectives"]["max_bytes"] > 4096
    assert AdviceTrial.objects.get().realised is None
    unit = {"name": run.unit_name, "time_s": (run.unit_time_s or 0) / 4}
    Run.objects.filter(pk=changed.pk).update(state="finished", summary={"unit": unit})
    assert AdviceTrial.objects.get().realised == pytest.approx(0.75)
    Run.objects.filter(pk=changed.pk).update(summary={"unit": unit | {"name": "search"}})
    assert AdviceTrial.objects.get().realised is None  # other units are not compared


def test_a_search_that_measured_nothing_says_so(
    page: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    run = stored_run({"parallel": {"engine": "capacity"}}, "", make_config, make_attempt)
    body = text(page.get(f"{run.get_absolute_url()}time/"))
    assert "measured neither messages nor trials" in body


def test_advice_that_does_not_shorten_the_step_states_no_gain(page: Client, slow_run: Run) -> None:
    growth = {"memory_growth": {"-1": {"bytes_per_s": 1e6, "bytes": 4e9}}}
    Run.objects.filter(pk=slow_run.pk).update(summary=slow_run.summary | growth)
    row = page.get(f"{slow_run.get_absolute_url()}time/").context["advice"][0]
    assert row.title.startswith("Find what keeps memory")
    assert (row.gain, row.interval, row.step_time) == (DASH,) * 3
    chips = page.get(slow_run.get_absolute_url()).context["step"].chips
    chip = next(chip for chip in chips if chip.text == "Find what keeps memory")
    assert (chip.change, chip.interval) == ("", "")
    assert all(chip.change for chip in chips if chip.text != "Find what keeps memory")
