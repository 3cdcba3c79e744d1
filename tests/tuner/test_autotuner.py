from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from parlab.lab.models import Config, Run
from parlab.series.log import append_log
from parlab.tuner import services
from parlab.tuner.models import Study, Trial
from parlab.tuner.results import result_of

from .conftest import DATA, finish

MakeStudy = Callable[..., Study]


def experiment(stage: int, size: int, passes: int = 1, **other: Any) -> bytes:
    """What engine autotuning prints of an experiment."""
    seconds = 0.01 * (1 + stage) + 0.01 * size * passes
    fields: dict[str, Any] = {
        "name": f"z{stage}_gas{passes}_tmbspg{size}",
        "state": "finished",
        "zero_stage": stage,
        "micro_batch_size": size,
        "accumulation": passes,
        "began": 1000.0,
        "ended": 1010.0,
        "steps": 10,
        "step_time_s": {"median": seconds, "p10": seconds, "p90": seconds, "mean": seconds},
        "timers_s": {"forward": 0.2 * seconds, "backward": 0.4 * seconds, "step": 0.2 * seconds},
        "memory_peak_bytes": {"0": 1000, "1": 2000},
        **other,
    }
    return json.dumps(
        {"parlab": 1, "t": 1.0, "rank": 0, "event": "experiment", **fields}, separators=(",", ":")
    ).encode()


def print_lines(run: Run, *lines: bytes) -> None:
    append_log(run.current_attempt().pk, b"\n".join(lines) + b"\n")


def end(run: Run, state: str = "finished") -> None:
    Run.objects.filter(pk=run.pk).update(state=state, ended_at=timezone.now())
    run.attempts.update(state=state)


@pytest.fixture
def study(make_study: MakeStudy) -> Study:
    return services.study_advance(study=make_study(strategy="autotuner", hand_tuned=False))


def driver_of(study: Study) -> Run:
    study.refresh_from_db()
    assert study.driver is not None
    return study.driver


def test_the_tuner_gets_the_stages_and_sizes_of_the_space(study: Study, space_config: Config) -> None:
    resolved = driver_of(study).resolved
    assert resolved["parallel"]["engine"] == "autotuning"
    assert resolved["autotuning"] == {"stages": [0, 1], "max_micro_batch_size": 8}
    assert resolved["train"]["micro_batch_size"] == 1
    services.study_advance(study=study)
    assert Run.objects.count() == 1


def test_experiments_become_trials_while_the_tuner_searches(study: Study) -> None:
    driver = driver_of(study)
    print_lines(driver, b"log", experiment(0, 1), experiment(0, 4))
    study = services.study_advance(study=study)
    assert study.state == Study.State.RUNNING
    assert list(study.trials.values_list("key", flat=True)) == ["z0_gas1_tmbspg1", "z0_gas1_tmbspg4"]
    print_lines(driver, experiment(0, 4), experiment(1, 3, 2))
    end(driver)
    study = services.study_advance(study=study)
    assert study.state == Study.State.FINISHED
    assert study.reason == "DeepSpeed's autotuner ended after 3 experiments"
    run = study.trials.get(key="z1_gas2_tmbspg3").run
    assert run.resolved["parallel"]["engine"] == "zero"
    assert run.resolved["train"]["global_batch_size"] == 12
    assert run.memory_max_bytes == 2000
    assert all(trial.expected for trial in study.trials.all())
    assert run.current_attempt().state == "finished"


def test_the_tuners_metric_stands_beside_the_one_from_end_to_end(study: Study) -> None:
    driver = driver_of(study)
    print_lines(driver, experiment(0, 1), experiment(0, 4))
    end(driver)
    best = result_of(services.study_advance(study=study)).best
    assert best is not None
    assert best.value == pytest.approx(8 / 0.05)
    assert best.tuner_value == pytest.approx(8 / 0.04)


def test_experiments_that_failed_are_kept_as_such(study: Study) -> None:
    driver = driver_of(study)
    burst = experiment(0, 8, state="oom", reason="rank 0 needs more", step_time_s={}, timers_s={})
    print_lines(driver, experiment(0, 1), burst)
    end(driver)
    services.study_advance(study=study)
    assert study.trials.get(key="z0_gas1_tmbspg8").run.state == "oom"


@pytest.mark.parametrize(
    "line",
    [
        experiment(0, 1)[:-10],
        experiment(0, 1, name="../../etc"),
        experiment(7, 1),
        experiment(0, 1, micro_batch_size=-1),
        experiment(0, 1, step_time_s={"median": -1}),
        experiment(0, 1, ended=float("nan")),
        b'{"parlab":1,"event":"experiment"}',
        b'{"parlab":1,"event":"experiment","name":' + b"[" * 3000,
    ],
)
def test_a_line_that_is_no_experiment_stays_in_the_log(study: Study, line: bytes) -> None:
    print_lines(driver_of(study), line, experiment(1, 2))
    services.study_advance(study=study)
    assert list(study.trials.values_list("key", flat=True)) == ["z1_gas1_tmbspg2"]


def test_a_search_that_ran_nothing_says_why_and_can_be_resumed(study: Study) -> None:
    driver = driver_of(study)
    Run.objects.filter(pk=driver.pk).update(reason="DeepSpeed's autotuner requires tabulate")
    end(driver, "failed")
    study = services.study_advance(study=study)
    assert study.state == Study.State.FAILED
    assert "requires tabulate" in study.reason
    assert services.study_resume(study=study)
    driver.refresh_from_db()
    assert (driver.state, driver.attempt_number) == ("queued", 2)


def test_a_search_lost_with_its_node_is_started_again(study: Study) -> None:
    driver = driver_of(study)
    print_lines(driver, experiment(0, 1))
    end(driver, "lost")
    study = services.study_advance(study=study)
    assert study.state == Study.State.RUNNING
    assert driver_of(study).attempt_number == 2
    assert study.trials.count() == 1


def test_cancelling_the_study_cancels_the_search(study: Study) -> None:
    assert services.study_cancel(study=study)
    assert driver_of(study).state == "cancelled"


def test_more_experiments_than_allowed_end_the_search(make_study: MakeStudy) -> None:
    study = services.study_advance(study=make_study(strategy="autotuner", hand_tuned=False, max_launches=2))
    print_lines(driver_of(study), experiment(0, 1), experiment(0, 2))
    study = services.study_advance(study=study)
    assert "reached the maximum of 2 launches" in study.reason
    assert driver_of(study).state == "cancelled"


def test_the_reason_stays_while_comparisons_follow(make_study: MakeStudy) -> None:
    study = services.study_advance(study=make_study(strategy="autotuner", max_launches=1))
    print_lines(driver_of(study), experiment(0, 1))
    for _ in range(6):
        study = services.study_advance(study=study)
        for run in Run.objects.active():
            finish(run)
    assert study.state == Study.State.FINISHED
    assert "reached the maximum of 1 launches" in study.reason


def test_comparisons_follow_the_search(make_study: MakeStudy) -> None:
    study = services.study_advance(study=make_study(strategy="autotuner"))
    driver = driver_of(study)
    print_lines(driver, experiment(0, 1))
    end(driver)
    for _ in range(6):
        study = services.study_advance(study=study)
        for run in Run.objects.active():
            finish(run)
    assert study.state == Study.State.FINISHED
    assert study.trials.filter(role=Trial.Role.HAND_TUNED).count() == 4


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (
            {"engine": "megatron", "data_parallel_size": 2},
            "tunes engine zero, but this configuration uses engine megatron",
        ),
        (
            {"engine": "zero", "data_parallel_size": 2, "zero_stage": 1, "zero_offload": "optimizer"},
            "does not support offloading",
        ),
    ],
)
def test_what_the_tuner_does_not_search_is_refused(
    make_config: Callable[..., Config], user: Any, node: Any, parallel: dict[str, Any], message: str
) -> None:
    config = make_config(data=DATA | {"parallel": parallel}, sweep={"train.micro_batch_size": [1, 2]})
    with pytest.raises(ValueError, match=message):
        services.study_create(config=config, user=user, strategy="autotuner")
