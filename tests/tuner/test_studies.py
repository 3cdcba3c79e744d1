from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from parlab.lab.models import Attempt, Config, Node, Run
from parlab.lab.services.experiments import experiment_create
from parlab.tuner import services
from parlab.tuner.forms import StudyForm
from parlab.tuner.models import Study, Trial
from parlab.tuner.planning import NodePlanner, Unplanned, planner_for
from parlab.tuner.results import result_of, results_of, side_by_side
from parlab.tuner.spaces import noise, space_of
from parlab.tuner.text import result_markdown
from tests.conftest import place

from .conftest import DATA, SWEEP, finish, play

MakeStudy = Callable[..., Study]


def test_a_study_launches_few_runs_and_finds_the_best(make_study: MakeStudy, space_config: Config) -> None:
    study = play(make_study(hand_tuned=False))
    assert study.state == Study.State.FINISHED
    assert "noise" in study.reason
    result = result_of(study)
    assert result.best is not None
    assert result.best.trial.key == "z0_gas1_tmbspg4"
    assert len(result.search) < 8
    assert space_config.runs.count() == len(result.search)


def test_a_trial_is_an_ordinary_run_of_the_config(make_study: MakeStudy, space_config: Config) -> None:
    study = services.study_advance(study=make_study())
    trial = study.trials.get()
    assert trial.run.config == space_config
    assert trial.run.state == "queued"
    assert trial.expected
    assert trial.why


def test_while_a_trial_runs_nothing_else_is_launched(make_study: MakeStudy) -> None:
    study = make_study()
    for _ in range(3):
        study = services.study_advance(study=study)
    assert study.trials.count() == Run.objects.count() == 1


def test_an_interrupted_study_launches_nothing_twice(make_study: MakeStudy) -> None:
    study = make_study(strategy="exhaustive", hand_tuned=False)
    for _ in range(3):
        services.study_advance(study=study)
        for run in Run.objects.active():
            finish(run)
    services.study_pause(study=study)
    services.study_advance(study=study)
    assert study.trials.count() == 3
    services.study_resume(study=study)
    study = play(study)
    assert study.trials.count() == Run.objects.count() == 8


def test_what_was_measured_before_is_taken_as_it_is(make_study: MakeStudy) -> None:
    play(make_study(strategy="exhaustive", hand_tuned=False))
    study = play(make_study(strategy="planned", hand_tuned=False))
    assert Run.objects.count() == 8
    assert all(trial.reused for trial in study.trials.all())


def test_hand_tuning_and_the_baseline_are_compared(
    make_study: MakeStudy, make_config: Callable[..., Config], user: User
) -> None:
    plain = {**DATA, "parallel": {"engine": "hf"}, "model": {**DATA["model"], "implementation": "huggingface"}}
    sizes = {"train.micro_batch_size, train.global_batch_size": [[1, 1], [2, 2]]}
    baseline = make_config(data=plain, sweep=sizes)
    study = play(make_study(baseline=baseline))
    result = result_of(study)
    assert [column.name for column in result.compared] == ["baseline", "hand-tuned", "tuned"]
    assert (result.improvement_over("baseline") or 0) > 1
    assert (result.improvement_over("hand-tuned") or 0) >= 1
    hand = [each.trial.key for each in result.tried if each.trial.role == Trial.Role.HAND_TUNED]
    assert hand == [f"z0_gas1_tmbspg{size}" for size in (1, 2, 4, 8)]


def test_hand_tuning_stops_where_memory_ends(make_study: MakeStudy) -> None:
    def end(run: Run) -> None:
        finish(run, state="oom" if run.resolved["train"]["micro_batch_size"] > 2 else "finished")

    study = play(make_study(), end)
    hand = list(study.trials.filter(role="hand-tuned").order_by("number").values_list("key", flat=True))
    assert hand == [f"z0_gas1_tmbspg{size}" for size in (1, 2, 4)]
    best = result_of(study).best
    assert best is not None
    assert best.trial.key == "z0_gas1_tmbspg2"


def test_a_study_whose_every_trial_fails_says_so_and_can_be_resumed(make_study: MakeStudy) -> None:
    study = play(make_study(hand_tuned=False), lambda run: finish(run, state="failed"))
    assert study.state == Study.State.FAILED
    assert "no trial finished" in study.reason
    assert "logs" in study.reason
    assert study.trials.count() == 3
    assert services.study_resume(study=study)


def test_a_study_that_only_ran_out_of_memory_says_what_to_do(make_study: MakeStudy) -> None:
    study = play(make_study(hand_tuned=False), lambda run: finish(run, state="oom"))
    assert study.state == Study.State.FAILED
    assert "ran out of memory; sweep over smaller micro batches" in study.reason


def test_a_space_that_cannot_fit_is_not_launched_and_says_what_it_needs(
    make_study: MakeStudy, space_config: Config
) -> None:
    data = {**space_config.data, "launcher": {"memory_limit_mib": 64}}
    Config.objects.filter(pk=space_config.pk).update(data=data)
    space_config.refresh_from_db()
    study = services.study_advance(study=make_study(hand_tuned=False))
    assert study.state == Study.State.FAILED
    assert not Run.objects.exists()
    assert "none is predicted to fit into 64.0 MiB" in study.reason
    assert "gas1_tmbspg1 needs the least" in study.reason


@pytest.mark.database
def test_a_second_click_starts_no_second_study(make_study: MakeStudy) -> None:
    first = make_study()
    assert make_study() == first
    assert make_study(strategy="random") != first
    services.study_cancel(study=first)
    assert make_study() != first


def test_a_trial_lost_with_its_node_is_started_again(make_study: MakeStudy) -> None:
    lost: set[int] = set()

    def end(run: Run) -> None:
        if run.pk not in lost and not lost:
            lost.add(run.pk)
            finish(run, state="lost")
            run.attempts.update(state="lost")
        else:
            finish(run)

    study = play(make_study(hand_tuned=False), end)
    assert study.state == Study.State.FINISHED
    assert Run.objects.get(pk=next(iter(lost))).attempt_number == 2


def test_cancelling_a_study_cancels_the_trial_it_waits_for(make_study: MakeStudy) -> None:
    study = services.study_advance(study=make_study())
    assert services.study_cancel(study=study)
    assert study.trials.get().run.state == "cancelled"
    assert not services.study_cancel(study=study)
    study.refresh_from_db()
    assert study.state == Study.State.CANCELLED
    assert study.ended_at is not None


def test_the_launches_of_a_study_are_bounded(make_study: MakeStudy) -> None:
    study = play(make_study(strategy="exhaustive", max_launches=3, hand_tuned=False))
    assert study.trials.count() == 3
    assert "3 launches" in study.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "magic"}, "strategy 'magic'"),
        ({"objective": "fun"}, "objective 'fun'"),
        ({"max_launches": 0}, "max_launches 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make_study: MakeStudy, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_study(**options)
    assert not Study.objects.exists()


def test_too_few_timed_steps_are_refused(make_config: Callable[..., Config], user: User, node: Node) -> None:
    short = make_config(data={**DATA, "train": {**DATA["train"], "iterations": 5}})
    with pytest.raises(ValueError, match=r"train.iterations 5 leaves 3 timed steps.*use 12 or more"):
        services.study_create(config=short, user=user)


def test_the_form_disables_what_cannot_be_tuned_and_says_why(
    make_config: Callable[..., Config], space_config: Config
) -> None:
    short = make_config(data={**DATA, "train": {**DATA["train"], "iterations": 5}}, sweep=space_config.sweep)

    options = re.findall(r"<option[^>]*>[^<]*</option>", str(StudyForm()["config"]))

    (refused,) = [option for option in options if f'value="{short.pk}"' in option]
    assert " disabled" in refused
    assert "train.iterations 5 leaves 3 timed steps" in refused
    (offered,) = [option for option in options if f'value="{space_config.pk}"' in option]
    assert "disabled" not in offered


def test_a_space_without_a_point_that_can_run_is_refused(
    make_config: Callable[..., Config], user: User, node: Node
) -> None:
    none = make_config(data=DATA, sweep={"train.micro_batch_size": [3, 5]})
    with pytest.raises(ValueError, match="none of its points can run"):
        services.study_create(config=none, user=user)


def test_a_baseline_of_another_experiment_is_refused(space_config: Config, user: User) -> None:
    other = experiment_create(name="Other", owner=user)
    foreign = Config.objects.create(experiment=other, version=1, data=DATA, sweep={}, digest="x", created_by=user)
    with pytest.raises(ValueError, match="another experiment"):
        services.study_create(config=space_config, user=user, baseline=foreign)


def test_the_planner_is_asked_where_a_node_is_known(space_config: Config) -> None:
    planner = planner_for(space_config)
    assert isinstance(planner, NodePlanner)
    space = space_of(space_config, "throughput", planner).space
    assert all(candidate.predicted_s for candidate in space.candidates)
    Node.objects.all().delete()
    assert isinstance(planner_for(space_config), Unplanned)


def test_points_that_cannot_run_are_left_out_of_a_space(make_config: Callable[..., Config], node: Node) -> None:
    config = make_config(data=DATA, sweep={"train.micro_batch_size": [1, 2, 3]})
    measured_space = space_of(config, "throughput", Unplanned())
    assert [candidate.micro_batch_size for candidate in measured_space.space.candidates] == [1, 2]
    assert len(measured_space.invalid) == 1


def test_noise_is_the_standard_error_of_the_median() -> None:
    summary = {"steps": {"count": 25}, "step_time_s": {"median": 1.0, "p10": 0.9, "p90": 1.1}}
    assert noise(summary) == pytest.approx(1.2533 * 0.2 / 2.563 / 5)
    assert noise({}) == 0.01


def test_the_report_has_the_published_shape(make_study: MakeStudy) -> None:
    text = result_markdown(result_of(play(make_study())))
    assert "| Model name | Hand-tuned | Tuned |" in text
    assert "| tuning_space | num_experiments | best_metric_val | best_exp_name |" in text
    assert "| global |" in text
    assert "Total number of experiments:" in text
    assert "- Throughput improvement over hand-tuned: 1." in text
    assert "- GPT, 2 layers" in text
    assert "uses fp32 and runs as 2 ranks" in text
    assert "- Tuning time: 0:00:0" in text


def test_studies_of_one_space_are_compared_side_by_side(make_study: MakeStudy) -> None:
    first = play(make_study(strategy="exhaustive", hand_tuned=False))
    second = play(make_study(strategy="planned", hand_tuned=False))
    play(make_study(strategy="planned", objective="latency", hand_tuned=False))
    compared = side_by_side(second)
    assert [each.result.study for each in compared] == [first, second]
    assert [each.off for each in compared] == [0.0, 0.0]
    launches = [each.launches_until for each in compared]
    assert launches[0] == 3  # in the order of the axes the best comes third
    assert launches[1] is not None


def test_many_studies_are_read_in_as_many_queries_as_one(
    make_study: MakeStudy, django_assert_num_queries: Callable[[int], AbstractContextManager[object]]
) -> None:
    studies = [play(make_study(strategy=name, hand_tuned=False)) for name in ("planned", "random", "exhaustive")]
    with django_assert_num_queries(1):
        assert all(result.best for result in results_of(studies))


def test_only_runs_on_such_nodes_correct_the_first_predictions(
    make_config: Callable[..., Config], space_config: Config, user: User, node: Node
) -> None:
    other = make_config(data=DATA | {"model": {**DATA["model"], "hidden_size": 64}}, sweep=SWEEP)
    play(services.study_create(config=other, user=user, hand_tuned=False, strategy="exhaustive"))
    assert services.study_create(config=space_config, user=user).past_runs == 0  # their nodes are unknown
    far = Node.objects.create(
        name="n2", hardware={"gpus": [{"name": "H100"}]}, last_heartbeat_at=node.last_heartbeat_at
    )
    for attempt in Attempt.objects.filter(run__config=other):
        place(attempt, far)
    assert services.study_create(config=space_config, user=user, max_launches=19).past_runs == 0
    for attempt in Attempt.objects.filter(run__config=other):
        place(attempt, node)
    study = services.study_create(config=space_config, user=user, max_launches=18)
    assert study.past_runs == 8
    assert "corrected by 8 earlier runs" in result_markdown(result_of(study))


def test_the_command_refuses_an_unknown_experiment(space_config: Config) -> None:
    with pytest.raises(CommandError, match=r"unknown experiment 'nothing'; use one of: pipeline-schedules"):
        call_command("tune", "nothing")


def test_the_command_starts_a_study(space_config: Config, user: User) -> None:
    call_command("tune", "pipeline-schedules", "--user", user.username, "--no-wait")
    assert Study.objects.get().state == Study.State.RUNNING
