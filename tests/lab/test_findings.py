from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from pytest_django import DjangoAssertNumQueries

from parlab.lab.models import Attempt, Config, Experiment, Finding, Run, Source
from parlab.lab.services import findings as services
from parlab.lab.services.attempts import summary_store
from parlab.lab.services.findings import ended_findings_refresh, finding_acknowledge, finding_reopen, findings_refresh
from parlab.lab.services.members import attempt_report
from runners.config import RunConfig, digest
from runners.wire.protocol import Report

MakeAttempt = Callable[..., Attempt]


@pytest.fixture(autouse=True)
def _no_memory_of_sweeps() -> None:
    cache.clear()


@pytest.fixture
def wrong(make_attempt: MakeAttempt) -> Run:
    """A run whose samples/s contradict its batch size and step time."""
    run = make_attempt(state="finished").run
    Run.objects.filter(pk=run.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4000.0})
    return Run.objects.get(pk=run.pk)


def make_runs(config: Config, user: User, rates: list[float]) -> list[Run]:
    """Runs of a sweep over the micro batch size, with these samples/s."""
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


def test_a_contradiction_is_reported_with_both_numbers(wrong: Run) -> None:
    findings_refresh(experiment=wrong.experiment)
    finding = Finding.objects.get()
    assert (finding.rule, finding.severity, finding.run) == ("samples-per-second", "error", wrong)
    assert 4000.0 in finding.numbers.values()
    assert 4.0 in finding.numbers.values()


def test_a_consistent_run_has_no_findings(make_attempt: MakeAttempt) -> None:
    run = make_attempt(state="finished").run
    Run.objects.filter(pk=run.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4.0})
    findings_refresh(experiment=run.experiment)
    assert not Finding.objects.exists()


@pytest.mark.parametrize(("engine", "rules"), [("sharding", []), ("megatron", ["gpus-of-layout"])])
def test_the_rank_product_is_checked_only_for_engines_that_use_it(
    make_attempt: MakeAttempt, engine: str, rules: list[str]
) -> None:
    run = make_attempt(state="finished").run
    run.resolved["parallel"] |= {"engine": engine}
    run.resolved["cluster"]["gpus_per_node"] = 64
    run.save()
    findings_refresh(experiment=run.experiment)
    assert list(Finding.objects.values_list("rule", flat=True)) == rules


def test_an_active_run_has_no_findings(make_attempt: MakeAttempt) -> None:
    run = make_attempt(state="running").run
    Run.objects.filter(pk=run.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4000.0})
    findings_refresh(experiment=run.experiment)
    assert not Finding.objects.exists()


@pytest.mark.database
def test_refreshing_again_changes_nothing(wrong: Run) -> None:
    findings_refresh(experiment=wrong.experiment)
    before = list(Finding.objects.values())
    findings_refresh(experiment=wrong.experiment)
    assert list(Finding.objects.values()) == before


@pytest.mark.database
def test_obsolete_findings_are_deleted_and_others_keep_their_acknowledgement(wrong: Run, user: User) -> None:
    findings_refresh(experiment=wrong.experiment)
    first = finding_acknowledge(finding=Finding.objects.get(), user=user, reason="a typing error")
    Run.objects.filter(pk=wrong.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 5000.0})
    findings_refresh(experiment=wrong.experiment)
    finding = Finding.objects.get()
    assert (finding.pk, finding.acknowledged_by, finding.acknowledged_reason) == (
        first.pk,
        user,
        "a typing error",
    )
    assert 5000.0 in finding.numbers.values()
    Run.objects.filter(pk=wrong.pk).update(summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4.0})
    findings_refresh(experiment=wrong.experiment)
    assert not Finding.objects.exists()


def test_an_acknowledgement_needs_a_reason_and_can_be_withdrawn(wrong: Run, user: User) -> None:
    findings_refresh(experiment=wrong.experiment)
    finding = Finding.objects.get()
    with pytest.raises(ValueError, match="reason is empty"):
        finding_acknowledge(finding=finding, user=user, reason=" \n")
    assert not Finding.objects.get().is_acknowledged
    assert finding_acknowledge(finding=finding, user=user, reason="expected").is_acknowledged
    assert not Finding.objects.open().exists()
    again = finding_reopen(finding=finding)
    assert (again.is_acknowledged, again.acknowledged_by, again.acknowledged_reason) == (False, None, "")


def test_a_finding_of_a_file_is_not_repeated_for_its_run(wrong: Run, user: User) -> None:
    reported = {
        "rule": "samples-per-second",
        "severity": "error",
        "message": "m",
        "where": {"segment": 0},
        "lines": [7],
    }
    other = {"rule": "aggregate", "severity": "error", "message": "a", "where": {"table": 0, "column": 3}}
    source = Source.objects.create(
        experiment=wrong.experiment,
        name="x.log",
        format="megatron",
        sha256="0" * 64,
        size=1,
        document={"findings": [reported, other]},
        created_by=user,
    )
    Run.objects.filter(pk=wrong.pk).update(source=source, place={"segment": 0})
    findings_refresh(experiment=wrong.experiment)
    by_rule = {finding.rule: finding for finding in Finding.objects.all()}
    assert set(by_rule) == {"samples-per-second", "aggregate"}
    assert (by_rule["samples-per-second"].run, by_rule["samples-per-second"].line) == (wrong, 7)
    assert by_rule["aggregate"].run is None
    assert {finding.source for finding in by_rule.values()} == {source}


def test_findings_about_a_row_or_cell_belong_to_its_run(
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


def test_refreshing_an_experiment_does_not_change_others(wrong: Run, user: User) -> None:
    findings_refresh(experiment=wrong.experiment)
    other = Experiment.objects.create(name="Other", slug="other", owner=user)
    findings_refresh(experiment=other)
    assert Finding.objects.count() == 1


def test_findings_are_computed_when_a_run_ends(make_attempt: MakeAttempt, make_config: Callable[..., Config]) -> None:
    config = make_config()
    going_on = make_attempt(config=config)
    ended = make_attempt(config=config, point={"train.seed": 2})
    cache.add(f"parlab.findings.{config.experiment_id}", True, 60)  # the sweep has just been compared
    summary_store(attempt=ended, summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4000.0})
    attempt_report(attempt=ended, report=Report(state="finished", at=1.7e9, exit_code=0))
    ended_findings_refresh(runs=[ended.run])
    assert Finding.objects.get().run == ended.run
    # Consistent again: the finding of this run is deleted, those of others remain.
    Finding.objects.create(
        experiment=config.experiment, run=going_on.run, rule="off-neighbours", severity="warning", where_digest="x"
    )
    summary_store(attempt=ended, summary={"step_time_s": {"median": 1.0}, "samples_per_s": 4.0})
    ended_findings_refresh(runs=[ended.run])
    assert [finding.rule for finding in Finding.objects.all()] == ["off-neighbours"]


def test_the_last_run_of_a_sweep_triggers_the_comparison(
    make_config: Callable[..., Config], user: User, make_attempt: MakeAttempt
) -> None:
    config = make_config()
    runs = make_runs(config, user, [10.0, 20.0, 3.0, 80.0, 160.0, 320.0])
    for number, run in enumerate(runs):
        Run.objects.filter(pk=run.pk).update(
            point={"train.global_batch_size": 2**number}, summary={"samples_per_s": run.summary["samples_per_s"]}
        )
    cache.add(f"parlab.findings.{config.experiment_id}", True, 60)
    ended_findings_refresh(runs=[runs[-1]])
    assert [(finding.rule, finding.run) for finding in Finding.objects.all()] == [("off-neighbours", runs[2])]


def test_a_deleted_run_has_no_findings(make_attempt: MakeAttempt) -> None:
    run = make_attempt(state="finished").run
    deleted = Run.objects.get(pk=run.pk)
    run.attempts.all().delete()
    run.delete()
    ended_findings_refresh(runs=[deleted])
    assert not Finding.objects.exists()


def test_the_sweep_is_compared_once_for_all_runs_that_end_together(
    make_config: Callable[..., Config], user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Experiment] = []
    refresh = services.findings_refresh

    def noted(*, experiment: Experiment) -> list[Finding]:
        compared.append(experiment)
        return refresh(experiment=experiment)

    monkeypatch.setattr(services, "findings_refresh", noted)
    config = make_config()
    runs = make_runs(config, user, [10.0, 20.0, 3.0, 80.0, 160.0, 320.0])
    for number, run in enumerate(runs):
        Run.objects.filter(pk=run.pk).update(
            point={"train.global_batch_size": 2**number}, summary={"samples_per_s": run.summary["samples_per_s"]}
        )
    services.ended_findings_refresh(runs=runs)
    assert compared == [config.experiment]
    assert [(finding.rule, finding.run) for finding in Finding.objects.all()] == [("off-neighbours", runs[2])]


@pytest.mark.slow
@pytest.mark.database
def test_a_thousand_runs_need_a_constant_number_of_queries(
    make_config: Callable[..., Config], user: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    config = make_config()
    make_runs(config, user, [10.0 + number % 7 for number in range(1_000)])
    Run.objects.filter(number__lte=50).update(summary={"samples_per_s": 1e6, "step_time_s": {"median": 1.0}})
    with django_assert_max_num_queries(15):
        findings_refresh(experiment=config.experiment)
    assert Finding.objects.filter(rule="samples-per-second").count() == 50
