"""Saving a config: in place if unused, as the next version if a run uses it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.lab.models import Config, Experiment, Snapshot
from parlab.lab.services.configs import Superseded, config_save
from parlab.lab.services.experiments import experiment_clone, experiment_create
from parlab.lab.services.published import published_run_add
from parlab.lab.services.runs import config_launch, run_cancel_request, run_relaunch
from runners.config import ConfigError, complete, with_values
from tests.conftest import SMALL


def save(experiment: Experiment, user: User, sweep: dict[str, Any] | None = None, **more: Any) -> Config:
    data = more.pop("data", SMALL)
    return config_save(experiment=experiment, data=data, sweep=sweep or {}, user=user, **more)


def test_a_saved_config_is_complete(experiment: Experiment, user: User) -> None:
    assert save(experiment, user).data == complete(SMALL)


@pytest.mark.database
def test_equal_content_is_the_same_version_in_any_order_and_notation(experiment: Experiment, user: User) -> None:
    first = save(experiment, user, note="why")
    again = save(experiment, user, data={"parallel": {"pipeline_parallel_size": "2"}, **dict(reversed(SMALL.items()))})
    assert (again.pk, again.version, again.note) == (first.pk, 1, "why")
    assert save(experiment, user, note="better note").note == "better note"
    assert save(experiment, user, note="").note == ""
    assert experiment.configs.count() == 1


@pytest.mark.database
def test_an_unused_version_is_edited_in_place_and_a_used_version_is_kept(experiment: Experiment, user: User) -> None:
    first = save(experiment, user)
    edited = save(experiment, user, {"train.seed": [1]})
    assert (edited.pk, edited.version) == (first.pk, 1)
    config_launch(config=edited, user=user)
    second = save(experiment, user, {"train.seed": [1, 2]}, note="another seed")
    assert (second.version, second.note) == (2, "another seed")
    edited.refresh_from_db()
    assert edited.sweep == {"train.seed": [1]}


def test_an_edit_of_an_outdated_version_is_refused_unless_it_adds_one(experiment: Experiment, user: User) -> None:
    assert save(experiment, user, based_on="").version == 1
    seen = experiment.configs.get().digest
    first = save(experiment, user, {"train.seed": [1]}, based_on=seen)
    with pytest.raises(Superseded, match=f"has saved v1 .* {first.digest[:12]}"):
        save(experiment, user, {"train.seed": [2]}, based_on=seen)
    assert save(experiment, user, {"train.seed": [1]}, based_on=seen) == first  # nothing is replaced
    assert save(experiment, user, {"train.seed": [2]}, based_on=first.digest, as_next=True).version == 2
    assert experiment.configs.get(version=1).sweep == {"train.seed": [1]}


def test_a_launch_starts_what_its_caller_has_read_or_nothing(experiment: Experiment, user: User) -> None:
    stale = save(experiment, user)
    current = save(experiment, user, {"train.seed": [1, 2]})
    with pytest.raises(Superseded):
        config_launch(config=stale, user=user)
    assert len(config_launch(config=current, user=user).created) == 2


@pytest.mark.parametrize(
    ("data", "sweep", "field"),
    [
        ({"model": {"layers": 2}}, {}, "model.layers"),
        ({"modle": {}}, {}, "modle"),
        ({"train": {"iterations": 0}}, {}, "train.iterations"),
        (SMALL, {"train.sede": [1]}, "sweep"),
        (SMALL, {"train.seed": [float("nan")]}, "sweep"),
        (with_values(SMALL, {"model.hidden_size": 33}), {}, "model.num_attention_heads"),
        (SMALL, {"train.micro_batch_size": [3, 5]}, "train.global_batch_size"),
    ],
)
def test_invalid_configs_are_rejected_with_the_field(
    data: dict[str, Any], sweep: dict[str, Any], field: str, experiment: Experiment, user: User
) -> None:
    with pytest.raises(ConfigError) as refused:
        save(experiment, user, sweep, data=data)
    assert field in [problem.field for problem in refused.value.problems]
    assert not experiment.configs.exists()


def test_the_base_may_be_invalid_without_its_axes(experiment: Experiment, user: User) -> None:
    base = with_values(SMALL, {"train.micro_batch_size": 3})
    assert save(experiment, user, {"train.micro_batch_size": [1, 3]}, data=base).version == 1


@pytest.mark.database
def test_slugs_and_names_are_unique(user: User) -> None:
    names = ["Scaling!", "Scaling?", "日本語", "日本", "x" * 120]
    slugs = [experiment_create(name=name, owner=user).slug for name in names]
    assert slugs[:4] == ["scaling", "scaling-2", "experiment", "experiment-2"]
    with pytest.raises(ValueError, match="is taken; choose another"):
        experiment_create(name="Scaling!", owner=user)
    for _ in range(2):
        experiment_clone(experiment=Experiment.objects.get(name="x" * 120), user=user)


def test_a_clone_has_the_latest_config_and_no_runs(experiment: Experiment, user: User) -> None:
    config_launch(config=save(experiment, user), user=user)
    latest = save(experiment, user, {"train.seed": [1, 2]})
    clone = experiment_clone(experiment=experiment, user=user)
    (config,) = clone.configs.all()
    assert (config.version, config.sweep, config.digest) == (1, latest.sweep, latest.digest)
    assert not clone.runs.exists()


def test_published_runs_may_have_unsupported_axes_and_layouts(experiment: Experiment, user: User) -> None:
    data = with_values(SMALL, {"model.kind": "bert", "parallel.tensor_parallel_size": 2})
    config = save(experiment, user, data=data, runnable=False)
    point = {"network": "delay 1ms", "parallel.pipeline_parallel_size": 4, "method": "theirs"}
    run = published_run_add(
        config=config, point=point, user=user, summary={"step_time_s": {"mean": 2.0}, "samples_per_s": 4}
    )
    run.refresh_from_db()
    assert run.label == "network delay 1ms, pipeline_parallel_size 4, method theirs"
    assert (run.state, run.origin, run.step_time_s, run.samples_per_s) == ("finished", "published", 2.0, 4.0)
    assert run.resolved["cluster"]["gpus_per_node"] == 8
    assert Snapshot.objects.get(run=run).kind == Snapshot.Kind.RESULTS
    with pytest.raises(ValueError, match="already has run #1"):
        published_run_add(config=config, point=point, user=user, summary={})
    with pytest.raises(ValueError, match="was not measured by parlab"):
        run_relaunch(run=run, user=user)
    with pytest.raises(ValueError, match="has already ended"):
        run_cancel_request(run=run)
