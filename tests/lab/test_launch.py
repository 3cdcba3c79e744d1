"""Launching a config: one run for each valid point."""

import pytest
from django.contrib.auth.models import User

from parlab.lab.models import Config, Experiment, Run, Snapshot
from parlab.lab.services.configs import config_save
from parlab.lab.services.runs import config_launch
from runners.config import ConfigError
from runners.wire.protocol import RunState
from tests.conftest import SMALL

SWEEP = {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]}


@pytest.fixture
def config(experiment: Experiment, user: User) -> Config:
    return config_save(experiment=experiment, data=SMALL, sweep=SWEEP, user=user)


@pytest.mark.database
def test_a_launch_queues_a_run_for_every_valid_point(config: Config, user: User) -> None:
    launch = config_launch(config=config, user=user)
    # 4 sequences in micro batches of 4 give a single micro batch: too few for 1f1b with two stages.
    assert [run.label for run in launch.created] == [
        "schedule gpipe, micro_batch_size 1",
        "schedule gpipe, micro_batch_size 2",
        "schedule gpipe, micro_batch_size 4",
        "schedule 1f1b, micro_batch_size 1",
        "schedule 1f1b, micro_batch_size 2",
    ]
    assert [run.number for run in launch.created] == [1, 2, 3, 4, 5]
    (invalid,) = launch.invalid
    assert invalid.values == {"parallel.schedule": "1f1b", "train.micro_batch_size": 4}
    assert "1f1b requires at least as many micro batches as stages" in str(invalid.problems[0])
    for run in config.runs.all():
        assert run.state == RunState.QUEUED == run.current_attempt().state
        assert run.resolved["cluster"]["gpus_per_node"] == 2
        assert run.resolved["train"]["optimizer"] == "adam"


@pytest.mark.database
def test_a_second_launch_creates_nothing(config: Config, user: User) -> None:
    config_launch(config=config, user=user)
    second = config_launch(config=config, user=user)
    assert (second.created, second.existing) == ([], 5)
    assert config.runs.count() == 5


def test_every_run_gets_a_snapshot_of_its_configuration(config: Config, user: User) -> None:
    run = config_launch(config=config, user=user).created[0]
    snapshot = Snapshot.objects.get(run=run)
    assert snapshot.kind == Snapshot.Kind.CONFIGURATION
    assert snapshot.content["config"] == run.resolved
    assert snapshot.content["point"] == run.point


def test_a_config_without_a_sweep_is_a_single_run_labelled_by_version(experiment: Experiment, user: User) -> None:
    config = config_save(experiment=experiment, data=SMALL, sweep={}, user=user)
    assert [run.label for run in config_launch(config=config, user=user).created] == ["v1"]


def test_an_engine_that_stays_on_its_node_is_rejected_for_several_nodes(experiment: Experiment, user: User) -> None:
    data = {**SMALL, "cluster": {"nodes": 2}, "parallel": {**SMALL["parallel"], "engine": "capacity"}}
    config = config_save(experiment=experiment, data=data, sweep={}, user=user)
    with pytest.raises(ConfigError, match=r"cluster\.nodes: nodes 2 .* engine capacity.* set nodes to 1"):
        config_launch(config=config, user=user)
    assert not config.runs.exists()


def test_points_that_cannot_start_on_their_nodes_are_reported_as_invalid(experiment: Experiment, user: User) -> None:
    data = {**SMALL, "parallel": {**SMALL["parallel"], "engine": "capacity"}}
    config = config_save(experiment=experiment, data=data, sweep={"cluster.nodes": [1, 2]}, user=user)
    launch = config_launch(config=config, user=user)
    assert (len(launch.created), [point.values for point in launch.invalid]) == (1, [{"cluster.nodes": 2}])


@pytest.mark.usefixtures("config")
def test_run_numbers_continue_across_versions(experiment: Experiment, config: Config, user: User) -> None:
    config_launch(config=config, user=user)
    second = config_save(experiment=experiment, data=SMALL, sweep={}, user=user)
    assert [run.number for run in config_launch(config=second, user=user).created] == [6]


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("schedule gpipe, micro_batch_size 2", "schedule gpipe, micro batch size 2"),
        ("zero_stage unset, delay_ms 5, repeat 2", "ZeRO stage unset, delay 5\u202fms, repeat 2"),
        ("v3, emulated", "v3, emulated"),
        ("network delay 1ms, method theirs", "network delay 1ms, method theirs"),
        ("", ""),
    ],
)
def test_pages_name_the_fields_of_a_point_as_menus_do(stored: str, shown: str) -> None:
    assert Run(label=stored).shown_label == shown
