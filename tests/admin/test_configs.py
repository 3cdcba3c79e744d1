"""The form of a configuration, created from the schema of RunConfig."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from parlab.lab.forms.config_layout import unused_fields
from parlab.lab.forms.form_fields import SweepField, form_field
from parlab.lab.forms.forms import ConfigForm
from parlab.lab.forms.presets import PRESETS
from parlab.lab.models import Config, Experiment, Node, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.runs import config_launch
from runners.config import complete, expand, field_names
from tests.conftest import SMALL

Typed = Callable[..., dict[str, Any]]
SWEEP = {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]}


@pytest.fixture
def config(experiment: Experiment, admin_user: Any) -> Config:
    return config_save(experiment=experiment, data=SMALL, sweep=SWEEP, user=admin_user)


def url(config: Config) -> str:
    return reverse("admin:lab_config_change", args=[config.pk])


def save(admin: Client, config: Config, data: dict[str, Any]) -> str:
    response = admin.post(url(config), data, follow=True)
    assert response.status_code == 200
    return response.content.decode()


def test_every_config_field_has_a_form_field_with_help(admin: Client, config: Config) -> None:
    page = admin.get(url(config)).content.decode()
    for name in field_names():
        assert f'name="{name.replace(".", "__")}"' in page, name
    assert "Attention heads per layer; must divide hidden_size." in page
    assert 'min="1"' in page
    assert '<option value="gpipe">' in page


def test_submitting_an_unchanged_form_changes_nothing(admin: Client, config: Config, typed: Typed) -> None:
    save(admin, config, typed(config))
    (only,) = Config.objects.all()
    assert (only.version, only.digest, only.data) == (1, config.digest, config.data)


def test_a_save_over_what_was_not_seen_is_refused_with_the_text_kept(
    admin: Client, config: Config, typed: Typed, admin_user: Any
) -> None:
    mine = typed(config, train__iterations="7")
    theirs = config_save(experiment=config.experiment, data=config.data, sweep={"train.seed": [9]}, user=admin_user)
    page = save(admin, config, mine)
    assert "has saved v1" in page
    assert 'value="7"' in page
    assert Config.objects.get().sweep == {"train.seed": [9]}
    [seen] = re.findall(r'name="seen_digest" value="([^"]+)"', page)
    save(admin, config, {**mine, "seen_digest": seen})
    assert [version.version for version in Config.objects.order_by("version")] == [1, 2]
    theirs.refresh_from_db()
    assert theirs.sweep == {"train.seed": [9]}


def test_an_unused_version_is_edited_in_place(admin: Client, config: Config, typed: Typed) -> None:
    page = save(admin, config, typed(config, train__iterations="7", note="longer", cluster__gpus_per_node="2"))
    config.refresh_from_db()
    assert (config.version, config.data["train"]["iterations"], config.note) == (1, 7, "longer")
    assert config.data["cluster"]["gpus_per_node"] == 2
    assert "Saved as v1" in page
    assert Config.objects.count() == 1


def test_saving_a_used_version_creates_the_next_and_lists_the_changes(
    admin: Client, config: Config, typed: Typed, admin_user: Any
) -> None:
    config_launch(config=config, user=admin_user)
    page = save(admin, config, typed(config, train__iterations="7", train__optimizer="sgd"))
    second = Config.objects.get(version=2)
    config.refresh_from_db()
    assert config.data["train"]["iterations"] == 4
    assert second.data["train"] == config.data["train"] | {"iterations": 7, "optimizer": "sgd"}
    assert second.created_by == admin_user
    assert "Changed since v1: train.iterations 4 → 7; train.optimizer adam → sgd." in page
    assert "<tr><td><code>train.iterations</code></td><td>4</td><td>7</td></tr>" in page
    assert f'action="{url(second)}"' in page or f"/config/{second.pk}/" in page


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("model__num_layers", "many", "invalid value &quot;many&quot; for model.num_layers"),
        ("model__num_layers", "", "num_layers is required; enter a value, for example 4"),
        ("model__num_layers", "9" * 5000, "for model.num_layers"),
        ("model__num_attention_heads", "3", "num_attention_heads 3 does not divide hidden_size 32; use 1, 2, 4"),
        ("sweep", "[1,", "the sweep is not valid JSON"),
        ("sweep", '{"micro_batch_size": [1]}', "use train.micro_batch_size"),
        ("sweep", '{"cluster.pool": ["\\u0000"]}', "not plain JSON"),
        ("sweep", '{"train.micro_batch_size": [3, 5]}', "none of the 2 points can run"),
    ],
)
def test_errors_appear_at_their_field_and_input_is_kept(
    field: str, text: str, message: str, admin: Client, config: Config, typed: Typed
) -> None:
    response = admin.post(url(config), typed(config, note="typed before", sweep="") | {field: text})
    page = response.content.decode()
    form: ConfigForm = response.context["adminform"].form
    assert message in page
    assert field in form.errors, form.errors
    assert form[field].value() == text
    assert 'value="typed before"' in page
    config.refresh_from_db()
    assert config.sweep == SWEEP


def test_invalid_points_are_allowed_and_listed(admin: Client, config: Config) -> None:
    page = admin.get(url(config)).content.decode()
    assert "1 of 6 points cannot run." in page
    assert "no: train.micro_batch_size: 1f1b requires at least as many micro batches as stages" in page


def test_a_new_config_starts_from_the_defaults(admin: Client, experiment: Experiment, typed: Typed) -> None:
    data = typed(experiment=experiment.pk, sweep='{"train.seed": [1, 2]}', note="first")
    page = admin.post(reverse("admin:lab_config_add"), data, follow=True).content.decode()
    config = Config.objects.get()
    assert (config.version, config.sweep, config.note) == (1, {"train.seed": [1, 2]}, "first")
    assert config.data == complete({})
    assert "Saved as v1 of Pipeline schedules." in page


def test_adding_never_overwrites_an_unused_version(
    admin: Client, config: Config, experiment: Experiment, typed: Typed
) -> None:
    admin.post(reverse("admin:lab_config_add"), typed(experiment=experiment.pk))
    config.refresh_from_db()
    assert config.sweep == SWEEP
    assert Config.objects.count() == 2


def test_launch_reports_new_runs_and_invalid_points(admin: Client, config: Config) -> None:
    data = {"action": "launch", "_selected_action": config.pk, "from_object": "1"}
    assert "has saved v1" in admin.post(reverse("admin:lab_config_changelist"), data, follow=True).content.decode()
    data[f"seen-{config.pk}"] = config.digest
    response = admin.post(reverse("admin:lab_config_changelist"), data, follow=True)
    page = response.content.decode()
    assert response.redirect_chain[-1][0] == url(config)
    assert "launched 5 runs; 1 point cannot run: schedule 1f1b, micro_batch_size 4: " in page
    again = admin.post(reverse("admin:lab_config_changelist"), data, follow=True).content.decode()
    assert "launched 0 runs; 5 points already had a run" in again
    assert Run.objects.count() == 5


def test_a_rejected_launch_shows_the_reason(admin: Client, experiment: Experiment, admin_user: Any) -> None:
    data = {"parallel": {"engine": "autotuning", "data_parallel_size": 2}, "cluster": {"nodes": 2}}
    config = config_save(experiment=experiment, data=data, sweep={}, user=admin_user)
    page = admin.post(
        reverse("admin:lab_config_changelist"),
        {"action": "launch", "_selected_action": config.pk, f"seen-{config.pk}": config.digest},
        follow=True,
    ).content.decode()
    assert "nodes 2 is not possible with engine autotuning, which runs on one node; set nodes to 1, or" in page


def test_view_permission_shows_the_configuration_without_buttons(
    staff: Callable[..., Client], config: Config, typed: Typed
) -> None:
    client = staff("view_config")
    page = client.get(url(config)).content.decode()
    assert "&quot;num_layers&quot;: 2" in page
    assert 'name="model__num_layers"' not in page
    assert 'id="launch"' not in page
    assert client.post(url(config), typed(config)).status_code == 403
    client.post(reverse("admin:lab_config_changelist"), {"action": "launch", "_selected_action": config.pk})
    assert not Run.objects.exists()


def test_a_hostile_note_is_escaped(admin: Client, config: Config, typed: Typed) -> None:
    hostile = "<script>alert(1)</script>"
    page = save(admin, config, typed(config, note=hostile, train__seed="5"))
    assert hostile not in page + admin.get(reverse("admin:lab_config_changelist")).content.decode()


@given(st.text(max_size=60))
def test_no_sweep_input_causes_a_server_error(text: str) -> None:
    form = ConfigForm({"sweep": text})
    form.fields.pop("experiment")
    form.is_valid()


def test_form_fields_for_all_schema_types() -> None:
    assert form_field("flag", {"type": "boolean"}).clean("on") is True
    assert form_field("name", {"anyOf": [{"type": "string"}, {"type": "null"}]}).clean("") is None
    assert form_field("stage", {"enum": [0, 1], "type": "integer"}).clean("1") == 1
    assert form_field("only", {"const": "x"}).clean("x") == "x"
    assert form_field("maybe", {"anyOf": [{"enum": [8]}, {"type": "null"}]}).clean("") is None
    assert form_field("links", {"type": "array"}).clean("[1]") == [1]
    assert SweepField().prepare_value({}) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1,", "the sweep is not valid JSON"),
        ("[" * 5000, "nested too deeply"),
        ('{"train.seed": ' + "[" * 22 + "1" + "]" * 22 + "}", "nested too deeply"),
        ('{"train.seed": [1], "train.seed": [2]}', "duplicate train.seed"),
        ('{"train.learning_rate": [NaN]}', "invalid number NaN"),
    ],
)
def test_a_sweep_that_is_no_json_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SweepField().clean(text)


def test_a_mapping_is_entered_as_json_or_left_empty(admin: Client, config: Config, typed: Typed) -> None:
    assert typed(config)["sharding__device_mapping"] == ""

    page = save(admin, config, typed(config, command__argv='["train.py"'))

    assert "Enter a valid JSON" in page
    assert "[&quot;train.py&quot;" in page


def checked(admin: Client, config: Config | None, data: dict[str, Any]) -> dict[str, Any]:
    url = reverse("admin:lab_config_check") + (f"?config={config.pk}" if config else "")
    response = admin.post(url, data)
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


def test_input_is_checked_without_saving(admin: Client, config: Config, typed: Typed) -> None:
    answer = checked(admin, config, typed(config, model__num_attention_heads="3"))
    assert "does not divide hidden_size 32" in answer["errors"]["model__num_attention_heads"][0]
    answer = checked(admin, config, typed(config, train__iterations="7", sweep='{"train.seed": [1, 2, 3]}'))
    assert answer["errors"] == {}
    assert "3 points, 2 GPUs or processes each." in answer["preview"]
    assert "changes since v1" in answer["changes"]
    assert "<td><code>train.iterations</code></td><td>4</td><td>7</td>" in answer["changes"]
    config.refresh_from_db()
    assert (config.data["train"]["iterations"], config.sweep) == (4, SWEEP)


def test_incomplete_fields_give_errors_and_no_preview(admin: Client, config: Config, typed: Typed) -> None:
    answer = checked(admin, config, typed(config, model__num_layers="", sweep="{"))
    assert set(answer["errors"]) == {"model__num_layers", "sweep"}
    assert "Shown when every field is valid" in answer["preview"]


def test_a_new_configuration_is_checked_without_an_experiment(admin: Client, typed: Typed) -> None:
    answer = checked(admin, None, typed(None))
    assert answer["errors"] == {}
    assert "1 point, 1 GPU or processes each." in answer["preview"]


def test_the_engine_determines_the_fields_in_use(admin: Client, config: Config, typed: Typed) -> None:
    pipeline = set(checked(admin, config, typed(config))["unused"])
    assert {"parallel.zero_stage", "collectives.operation", "sharding.stage_cnt"} <= pipeline
    assert not pipeline & {"parallel.engine", "parallel.schedule", "model.num_layers"}
    allreduce = set(checked(admin, config, typed(config, parallel__engine="allreduce"))["unused"])
    assert {"model.num_layers", "train.global_batch_size"} <= allreduce
    assert not allreduce & {"collectives.operation", "train.iterations", "parallel.data_parallel_size"}


@pytest.mark.parametrize(
    ("system", "fields"),
    [("slurm", {"partition", "exclusive"}), ("kubernetes", {"image", "ttl_s", "queue_system", "tolerations"})],
)
def test_the_fields_of_a_batch_system_have_an_effect_in_its_pools_only(
    system: str, fields: set[str], admin: Client, config: Config, typed: Typed
) -> None:
    Node.objects.create(name="login1", pool="hpc", hardware={system: {}})
    elsewhere = set(checked(admin, config, typed(config))["unused"])
    assert {f"{system}.{name}" for name in fields} <= elsewhere
    there = set(checked(admin, config, typed(config, cluster__pool="hpc"))["unused"])
    assert not {name for name in there if name.startswith(f"{system}.")}


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


@pytest.mark.slow
@pytest.mark.parametrize("key", PRESETS)
def test_every_preset_can_run_and_fills_the_form(key: str, admin: Client, experiment: Experiment, typed: Typed) -> None:
    points = expand(PRESETS[key].data, PRESETS[key].sweep)
    assert [point.problems for point in points] == [[]] * len(points)
    values = admin.get(reverse("admin:lab_config_preset", args=[key])).json()
    data = typed(None) | {name: "" if value is None else value for name, value in values.items()}
    answer = checked(admin, None, {name: value for name, value in data.items() if value is not False})
    assert answer["errors"] == {}
    assert f"{len(points)} point" in answer["preview"]
    page = admin.get(f"{reverse('admin:lab_config_add')}?preset={key}&experiment={experiment.pk}").content.decode()
    assert f'<option value="{PRESETS[key].data["parallel"]["engine"]}" selected>' in page


def test_a_device_map_is_drawn_beside_the_form(admin: Client, experiment: Experiment, admin_user: Any) -> None:
    data = PRESETS["bert-large-shards"].data
    config = config_save(experiment=experiment, data=data, sweep={}, user=admin_user)
    page = admin.get(url(config)).content.decode()
    assert page.count("<title>stage ") == 32
    assert "8 stages \N{MULTIPLICATION SIGN} 4 shards on 8 devices" in page
    assert "&quot;stage_7&quot;: {&quot;shard_0&quot;: &quot;GPU:7&quot;" in page


def test_points_show_the_prediction_of_the_planner(admin: Client, config: Config) -> None:
    Node.objects.create(name="gpu", hardware={"gpus": [{"name": "NVIDIA H100 80GB HBM3"}] * 2})
    page = admin.get(url(config)).content.decode()
    assert "device hours" in page
    assert "Half of such predictions are within" in page


def test_a_check_requires_post_and_permission(
    staff: Callable[..., Client], admin: Client, config: Config, typed: Typed
) -> None:
    address = reverse("admin:lab_config_check")
    assert admin.get(address).status_code == 405
    assert staff("view_config").post(address, typed(config)).status_code == 403
    assert admin.get(reverse("admin:lab_config_preset", args=["nonsense"])).status_code == 404
    hostile = "<script>alert(1)</script>"
    answer = checked(admin, config, typed(config, cluster__pool=hostile, sweep='{"train.seed": ["' + hostile + '"]}'))
    assert hostile not in answer["preview"] + answer["changes"]
