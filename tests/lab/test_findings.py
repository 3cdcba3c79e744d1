from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from pytest_django import DjangoAssertNumQueries

from parlab.lab.models import Attempt, Config, Experiment, Finding, Run, Source
from parlab.lab.services import (
    attempt_report,
    finding_acknowledge,
    finding_reopen,
    findings_refresh,
    run_findings_refresh,
    summary_store,
)
from runners.config import RunConfig, digest
from runners.protocol import Report

MakeAttempt = Callable[..., Attempt]


@pytest.fixture(autouse=True)
def _no_memory_of_sweeps() -> None:
    cache.clear()


@pytest.fixture
def wrong(make_attempt: MakeAttempt) -> Run:
    """A run whose samples/s are not its batch over its step time."""
    run = make_attempt(state="finished").run
    Run.objects.filter(pk=run.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4000.0})
    return Run.objects.get(pk=run.pk)


def make_runs(config: Config, user: User, rates: list[float]) -> list[Run]:
    """Runs of one sweep over the micro batch size, with these samples/s."""
    resolved = RunConfig.model_validate(config.data).resolved()
    return Run.objects.bulk_create(
        [
            Run(
                experiment=config.experiment,
                config=config,
                number=number,
                point={"train.seed": number},
                point_digest=digest({"train.seed": number}),
                resolved=resolved,
                state="finished",
                summary={"samples_per_s": rate, "step_time_s": {"median": 4 / rate}},
                created_by=user,
            )
            for number, rate in enumerate(rates, 1)
        ]
    )


def test_a_contradiction_of_a_run_is_found_with_both_numbers(wrong: Run) -> None:
    findings_refresh(experiment=wrong.experiment)
    finding = Finding.objects.get()
    assert (finding.rule, finding.severity, finding.run) == ("samples-per-second", "error", wrong)
    assert 4000.0 in finding.numbers.values()
    assert 4.0 in finding.numbers.values()


def test_a_healthy_run_has_none(make_attempt: MakeAttempt) -> None:
    run = make_attempt(state="finished").run
    Run.objects.filter(pk=run.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4.0})
    findings_refresh(experiment=run.experiment)
    assert not Finding.objects.exists()


@pytest.mark.parametrize(("engine", "rules"), [("sharding", []), ("megatron", ["gpus-of-layout"])])
def test_only_engines_whose_ranks_are_tp_x_pp_x_dp_are_checked_for_it(
    make_attempt: MakeAttempt, engine: str, rules: list[str]
) -> None:
    run = make_attempt(state="finished").run
    run.resolved["parallel"] |= {"engine": engine}
    run.resolved["cluster"]["gpus_per_node"] = 64
    run.save()
    findings_refresh(experiment=run.experiment)
    assert list(Finding.objects.values_list("rule", flat=True)) == rules


def test_a_run_that_goes_on_is_not_judged(make_attempt: MakeAttempt) -> None:
    run = make_attempt(state="running").run
    Run.objects.filter(pk=run.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4000.0})
    findings_refresh(experiment=run.experiment)
    assert not Finding.objects.exists()


def test_computing_again_changes_nothing(wrong: Run) -> None:
    findings_refresh(experiment=wrong.experiment)
    before = list(Finding.objects.values())
    findings_refresh(experiment=wrong.experiment)
    assert list(Finding.objects.values()) == before


def test_what_no_longer_holds_goes_and_what_still_holds_keeps_its_acknowledgement(wrong: Run, user: User) -> None:
    findings_refresh(experiment=wrong.experiment)
    first = finding_acknowledge(finding=Finding.objects.get(), user=user, reason="a typing error in the paper")
    Run.objects.filter(pk=wrong.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 5000.0})
    findings_refresh(experiment=wrong.experiment)
    kept = Finding.objects.get()
    assert (kept.pk, kept.acknowledged_by, kept.acknowledged_reason) == (first.pk, user, "a typing error in the paper")
    assert 5000.0 in kept.numbers.values()
    Run.objects.filter(pk=wrong.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4.0})
    findings_refresh(experiment=wrong.experiment)
    assert not Finding.objects.exists()


def test_an_acknowledgement_needs_a_reason_and_can_be_taken_back(wrong: Run, user: User) -> None:
    findings_refresh(experiment=wrong.experiment)
    finding = Finding.objects.get()
    with pytest.raises(ValueError, match="reason is empty"):
        finding_acknowledge(finding=finding, user=user, reason=" \n")
    assert not Finding.objects.get().is_acknowledged
    assert finding_acknowledge(finding=finding, user=user, reason="known").is_acknowledged
    assert not Finding.objects.open().exists()
    again = finding_reopen(finding=finding)
    assert (again.is_acknowledged, again.acknowledged_by, again.acknowledged_reason) == (False, None, "")


def test_what_a_file_says_of_a_run_is_not_said_again_by_the_numbers(wrong: Run, user: User) -> None:
    said = {"rule": "samples-per-second", "severity": "error", "message": "m", "where": {"segment": 0}, "lines": [7]}
    other = {"rule": "aggregate", "severity": "error", "message": "a", "where": {"table": 0, "column": 3}}
    source = Source.objects.create(
        experiment=wrong.experiment,
        name="x.log",
        format="megatron",
        sha256="0" * 64,
        size=1,
        document={"findings": [said, other]},
        created_by=user,
    )
    Run.objects.filter(pk=wrong.pk).update(source=source, place={"segment": 0})
    findings_refresh(experiment=wrong.experiment)
    by_rule = {finding.rule: finding for finding in Finding.objects.all()}
    assert set(by_rule) == {"samples-per-second", "aggregate"}
    assert (by_rule["samples-per-second"].run, by_rule["samples-per-second"].line) == (wrong, 7)
    assert by_rule["aggregate"].run is None
    assert {finding.source for finding in by_rule.values()} == {source}


def test_a_row_and_a_cell_of_a_table_are_found_as_the_run_they_became(
    experiment: Experiment, make_attempt: MakeAttempt, user: User
) -> None:
    findings = [
        {"rule": "aggregate", "severity": "error", "message": str(n), "where": {"table": 0, "row": n, "column": 2}}
        for n in (0, 1)
    ]
    source = Source.objects.create(
        experiment=experiment,
        name="x.md",
        format="markdown",
        sha256="0" * 64,
        size=1,
        document={"findings": findings},
        created_by=user,
    )
    row, cell = (make_attempt(state="finished").run for _ in range(2))
    Run.objects.filter(pk=row.pk).update(source=source, place={"table": 0, "row": 0})
    Run.objects.filter(pk=cell.pk).update(source=source, place={"table": 0, "row": 1, "column": 2})
    findings_refresh(experiment=experiment)
    assert {finding.message: finding.run for finding in Finding.objects.all()} == {"0": row, "1": cell}


def test_findings_of_one_experiment_leave_those_of_another_alone(wrong: Run, user: User) -> None:
    findings_refresh(experiment=wrong.experiment)
    other = Experiment.objects.create(name="Other", slug="other", owner=user)
    findings_refresh(experiment=other)
    assert Finding.objects.count() == 1


def test_the_end_of_a_run_brings_its_findings(make_attempt: MakeAttempt, make_config: Callable[..., Config]) -> None:
    config = make_config()
    going_on = make_attempt(config=config)
    ended = make_attempt(config=config, point={"train.seed": 2})
    cache.add(f"parlab.findings.{config.experiment_id}", True, 60)  # the sweep was compared a moment ago
    summary_store(attempt=ended, summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4000.0})
    attempt_report(attempt=ended, report=Report(state="finished", at=1.7e9, exit_code=0))
    run_findings_refresh(run=ended.run)
    assert Finding.objects.get().run == ended.run
    # Healthy again: the finding of this run goes, those of others stay.
    Finding.objects.create(
        experiment=config.experiment, run=going_on.run, rule="off-neighbours", severity="warning", where_digest="x"
    )
    summary_store(attempt=ended, summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4.0})
    run_findings_refresh(run=ended.run)
    assert [finding.rule for finding in Finding.objects.all()] == ["off-neighbours"]


def test_the_last_run_of_a_sweep_brings_the_comparison_of_all(
    make_config: Callable[..., Config], user: User, make_attempt: MakeAttempt
) -> None:
    config = make_config()
    runs = make_runs(config, user, [10.0, 20.0, 3.0, 80.0, 160.0, 320.0])
    for number, run in enumerate(runs):
        Run.objects.filter(pk=run.pk).update(
            point={"train.global_batch_size": 2**number}, summary={"samples_per_s": run.summary["samples_per_s"]}
        )
    cache.add(f"parlab.findings.{config.experiment_id}", True, 60)
    run_findings_refresh(run=runs[-1])
    assert [(finding.rule, finding.run) for finding in Finding.objects.all()] == [("off-neighbours", runs[2])]


def test_a_run_that_was_deleted_meanwhile_has_no_findings(make_attempt: MakeAttempt) -> None:
    run = make_attempt(state="finished").run
    deleted = Run.objects.get(pk=run.pk)
    run.attempts.all().delete()
    run.delete()
    assert run_findings_refresh(run=deleted) == []


def test_a_thousand_runs_cost_a_few_queries(
    make_config: Callable[..., Config], user: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    config = make_config()
    make_runs(config, user, [10.0 + number % 7 for number in range(1_000)])
    Run.objects.filter(number__lte=50).update(summary={"samples_per_s": 1e6, "step_time_s": {"median": 1.0}})
    with django_assert_max_num_queries(12):
        findings_refresh(experiment=config.experiment)
    assert Finding.objects.filter(rule="samples-per-second").count() == 50
