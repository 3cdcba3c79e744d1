"""Configurations in the administration: its list, and the way to the builder, which edits them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from parlab.lab.forms.config_layout import unused_fields
from parlab.lab.forms.presets import PRESETS
from parlab.lab.models import Config, Experiment, Run
from parlab.lab.services.configs import config_save
from runners.config import complete, expand, field_names
from tests.conftest import SMALL

SWEEP = {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]}


@pytest.fixture
def config(experiment: Experiment, admin_user: Any) -> Config:
    return config_save(experiment=experiment, data=SMALL, sweep=SWEEP, user=admin_user)


def url(config: Config) -> str:
    return reverse("admin:lab_config_change", args=[config.pk])


def test_a_rejected_launch_shows_the_reason(admin: Client, experiment: Experiment, admin_user: Any) -> None:
    data = {"parallel": {"engine": "autotuning", "data_parallel_size": 2}, "cluster": {"nodes": 2}}
    config = config_save(experiment=experiment, data=data, sweep={}, user=admin_user)
    page = admin.post(
        reverse("admin:lab_config_changelist"),
        {"action": "launch", "_selected_action": config.pk, f"seen-{config.pk}": config.digest},
        follow=True,
    ).content.decode()
    assert "nodes 2 is not possible with engine autotuning, which runs on one node; set nodes to 1, or" in page


@pytest.mark.parametrize(
    "engine", ["pipeline", "megatron", "zero", "hf", "sharding", "allreduce", "capacity", "autotuning", "command"]
)
def test_fields_listed_as_unused_have_no_effect(engine: str) -> None:
    preset = next(preset for preset in PRESETS.values() if preset.data["parallel"]["engine"] == engine)
    unused = unused_fields(complete(preset.data))
    assert not unused & set(preset.sweep), "a preset sweeps over what changes nothing"
    for section, fields in preset.data.items():
        for name, value in fields.items():
            default = complete({})[section][name]
            is_forced = (section, name) in {("model", "implementation"), ("model", "num_layers")}
            assert f"{section}.{name}" not in unused or value == default or engine == "allreduce" or is_forced


def test_adding_and_changing_a_configuration_opens_the_builder(admin: Client, config: Config) -> None:
    slug = config.experiment.slug
    assert admin.get(reverse("admin:lab_config_add"))["Location"] == reverse("sweep-new")
    of_experiment = f"{reverse('admin:lab_config_add')}?experiment={config.experiment_id}&preset=pipeline"
    assert admin.get(of_experiment)["Location"] == f"{reverse('sweep-edit', args=[slug])}?preset=pipeline"
    assert admin.get(url(config))["Location"] == f"{reverse('sweep-edit', args=[slug])}?version=1"
    form = admin.get(url(config), follow=True).content.decode()
    for name in field_names():
        assert f'name="{name}"' in form, name


def test_nothing_is_saved_past_the_builder(admin: Client, config: Config) -> None:
    admin.post(url(config), {"note": "x", "sweep": "{}"})
    admin.post(reverse("admin:lab_config_add"), {"experiment": config.experiment_id})
    (only,) = Config.objects.all()
    assert (only.note, only.sweep) == (config.note, SWEEP)


def test_view_permission_shows_the_configuration_without_buttons(staff: Callable[..., Client], config: Config) -> None:
    client = staff("view_config")
    page = client.get(url(config)).content.decode()
    assert "&quot;num_layers&quot;: 2" in page
    assert 'name="model__num_layers"' not in page
    assert 'id="launch"' not in page
    assert client.post(url(config), {"note": "x"}).status_code == 403
    assert client.get(reverse("admin:lab_config_add")).status_code == 403
    client.post(reverse("admin:lab_config_changelist"), {"action": "launch", "_selected_action": config.pk})
    assert not Run.objects.exists()


def test_launch_reports_new_runs_and_invalid_points(admin: Client, config: Config) -> None:
    data = {"action": "launch", "_selected_action": config.pk}
    assert "has saved v1" in admin.post(reverse("admin:lab_config_changelist"), data, follow=True).content.decode()
    data[f"seen-{config.pk}"] = config.digest
    page = admin.post(reverse("admin:lab_config_changelist"), data, follow=True).content.decode()
    assert "launched 5 runs; 1 point cannot run: schedule 1f1b, micro_batch_size 4: " in page
    again = admin.post(reverse("admin:lab_config_changelist"), data, follow=True).content.decode()
    assert "launched 0 runs; 5 points already had a run" in again
    assert Run.objects.count() == 5


def test_a_hostile_note_is_escaped(admin: Client, config: Config) -> None:
    hostile = "<script>alert(1)</script>"
    Config.objects.filter(pk=config.pk).update(note=hostile)
    assert hostile not in admin.get(reverse("admin:lab_config_changelist")).content.decode()


def test_the_engine_determines_the_fields_in_use() -> None:
    pipeline = unused_fields(complete(SMALL))
    assert {"parallel.zero_stage", "collectives.operation", "sharding.stage_cnt"} <= pipeline
    assert not pipeline & {"parallel.engine", "parallel.schedule", "model.num_layers"}
    allreduce = unused_fields(complete({**SMALL, "parallel": {"engine": "allreduce"}}))
    assert {"model.num_layers", "train.global_batch_size"} <= allreduce
    assert not allreduce & {"collectives.operation", "train.iterations", "parallel.data_parallel_size"}


@pytest.mark.parametrize(
    ("system", "fields"),
    [("slurm", {"partition", "exclusive"}), ("kubernetes", {"image", "ttl_s", "queue_system", "tolerations"})],
)
def test_the_fields_of_a_batch_system_have_an_effect_in_its_pools_only(system: str, fields: set[str]) -> None:
    pools = {"slurm": set[str](), "kubernetes": set[str](), system: {"hpc"}}
    elsewhere = unused_fields(complete(SMALL), queue_pools=pools)
    assert {f"{system}.{name}" for name in fields} <= elsewhere
    there = unused_fields(complete({**SMALL, "cluster": {"pool": "hpc"}}), queue_pools=pools)
    assert not {name for name in there if name.startswith(f"{system}.")}


@pytest.mark.slow
@pytest.mark.parametrize("key", PRESETS)
def test_every_preset_can_run_and_fills_the_builder(key: str, admin: Client) -> None:
    points = expand(PRESETS[key].data, PRESETS[key].sweep)
    assert [point.problems for point in points] == [[]] * len(points)
    context = admin.get(f"{reverse('sweep-new')}?preset={key}").context
    assert context["mistakes"] == []
    assert len(context["reading"].points) == len(points)
