"""The sweep builder: what its form becomes, what is wrong with it, and what is saved."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from parlab.lab.models import Config, Experiment, Node, Run
from parlab.lab.services.configs import config_save
from parlab.pages.builder.axes import axis_text, axis_values
from parlab.pages.builder.draft import Draft
from parlab.pages.builder.fields import builder_fields
from runners.config import complete
from tests.conftest import SMALL

NEW = "/sweeps/new/"


def form(axes: dict[str, str] | None = None, together: dict[str, str] | None = None, **more: str) -> dict[str, Any]:
    """The form as a browser sends it: all fields of a small configuration, and axes as typed."""
    draft = Draft.of_data(complete(SMALL), {})
    rows = axes or {}
    fields = {
        name.replace("__", ".").replace("seen_", "seen-").replace("as_next", "as-next"): text
        for name, text in more.items()
    }
    lists = {
        "axis": list(rows),
        "axis-values": list(rows.values()),
        "axis-with": [(together or {}).get(path, "") for path in rows],
    }
    return {**draft.values, "name": "Batches", **lists, **fields}


@pytest.mark.parametrize(
    ("path", "text", "values"),
    [
        ("train.micro_batch_size", "1, 2, 4", [1, 2, 4]),
        ("train.micro_batch_size", "1 2 4", [1, 2, 4]),
        ("train.micro_batch_size", "1..64 ×2", [1, 2, 4, 8, 16, 32, 64]),
        ("train.micro_batch_size", "1..64 x2", [1, 2, 4, 8, 16, 32, 64]),
        ("train.micro_batch_size", "1 .. 4, 9", [1, 2, 3, 4, 9]),
        ("train.micro_batch_size", "1..9 +2", [1, 3, 5, 7, 9]),
        ("train.learning_rate", "0.001..0.1 *10", [0.001, 0.01, 0.1]),
        ("train.loss_scale", "unset, 1024", [None, 1024]),
        ("train.micro_batch_size", "1, two", [1, "two"]),
        ("parallel.schedule", "gpipe 1f1b", ["gpipe", "1f1b"]),
        ("parallel.zero_stage", "0..3", ["0..3"]),
        ("parallel.zero_stage", "0, 3", [0, 3]),
        ("parallel.sequence_parallel", "true, false", [True, False]),
        ("command.argv", '["/opt/a.py", "x, y"], ["/opt/b.py"]', [["/opt/a.py", "x, y"], ["/opt/b.py"]]),
    ],
)
def test_the_values_of_an_axis_are_read_from_its_text(path: str, text: str, values: list[Any]) -> None:
    field = builder_fields()[path]
    assert axis_values(field, text) == values
    assert axis_values(field, axis_text(field, values)) == values


@pytest.mark.parametrize("text", ["64..1 ×2", "1..64 ×1", "0..8 ×2", "1..x", "1..100000", "1..8 +0"])
def test_a_range_without_an_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|values"):
        axis_values(builder_fields()["train.micro_batch_size"], text)


def test_every_field_has_a_line_of_explanation_and_reads_back_its_default() -> None:
    draft = Draft.of_data({}, {})
    assert all(field.help for field in builder_fields().values())
    assert Draft.of_data(complete({}), {}).values == draft.values


def test_a_new_experiment_is_saved_with_its_sweep(page: Client) -> None:
    assert "Vary" in page.get(NEW).content.decode()
    axes = {"train.micro_batch_size": "1..4 ×2", "parallel.schedule": "gpipe, 1f1b"}
    response = page.post(NEW, form(axes, act="save", question="Which is faster?", train__global_batch_size="16"))
    config = Config.objects.get()
    assert response["Location"] == reverse("experiment", args=["batches"])
    assert config.sweep == {"train.micro_batch_size": [1, 2, 4], "parallel.schedule": ["gpipe", "1f1b"]}
    assert (config.experiment.name, config.experiment.question) == ("Batches", "Which is faster?")


def test_axes_that_change_together_are_one_axis(page: Client) -> None:
    axes = {"train.micro_batch_size": "1, 2", "train.seed": "1, 2", "train.global_batch_size": "4, 8"}
    page.post(NEW, form(axes, {"train.global_batch_size": "train.micro_batch_size"}, act="save"))
    assert Config.objects.get().sweep == {
        "train.micro_batch_size, train.global_batch_size": [[1, 4], [2, 8]],
        "train.seed": [1, 2],
    }
    uneven = form({"train.micro_batch_size": "1, 2", "train.seed": "1"}, {"train.seed": "train.micro_batch_size"})
    assert "give both the same number" in page.post(NEW, uneven | {"act": "save"}).content.decode()


def test_launch_starts_what_stands_in_the_form(page: Client, make_config: Callable[..., Config]) -> None:
    old = make_config()
    url = reverse("sweep-edit", args=[old.experiment.slug])
    page.post(url, form({"train.seed": "1, 2"}, act="launch", train__iterations="7", seen_digest=old.digest))
    assert [run.resolved["train"]["iterations"] for run in Run.objects.order_by("number")] == [7, 7]
    again = page.get(url).content.decode()
    assert 'value="1, 2"' in again
    assert "Changes since v" in again


def test_the_difference_to_the_last_version_stands_beside_the_form(page: Client, make_config: Any) -> None:
    old = make_config(sweep={"train.micro_batch_size": [1, 2]})
    url = reverse("sweep-edit", args=[old.experiment.slug])

    def differences(html: str) -> list[list[str]]:
        part = html[html.index('id="differences"') :].partition("</section>")[0]
        rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th><td>(.*?)</td><td>(.*?)</td></tr>", part)
        return [[re.sub("<[^>]+>", "", cell) for cell in row] for row in rows]

    opened = page.get(url).content.decode()
    assert "Changes since v1" in opened
    assert "No changes." in opened
    axes = {"train.micro_batch_size": "1, 2, 4"}
    changed = page.post(url, form(axes, train__iterations="7", seen_digest=old.digest)).content.decode()
    assert ["train.iterations", str(old.data["train"]["iterations"]), "7"] in differences(changed)
    assert ["sweep.train.micro_batch_size", "[1, 2]", "[1, 2, 4]"] in differences(changed)
    assert not Config.objects.exclude(pk=old.pk).exists()
    assert "First version" in page.get(NEW).content.decode()


def test_all_mistakes_are_shown_at_once_as_they_were_typed(page: Client) -> None:
    typed = form(
        {"train.seed": "1, one"},
        act="save",
        name="",
        train__iterations="0",
        model__num_layers="four",
        parallel__schedule="gpip",
        model__num_attention_heads="3",
    )
    response = page.post(NEW, typed)
    html = response.content.decode()
    assert response.status_code == 422
    assert not Experiment.objects.exists()
    for text in (
        'value="0"',
        'value="four"',
        '<option value="gpip" selected',
        'value="1, one"',
        "the experiment needs",
    ):
        assert text in html
    mistakes = html[html.index('id="mistakes"') : html.index("builder-columns")]
    for link in ("name", "f-train-iterations", "f-model-num_layers", "f-parallel-schedule", "a-train-seed"):
        assert f'href="#{link}"' in mistakes
    assert "did you mean gpipe?" in mistakes
    assert "num_attention_heads 3" in mistakes


def test_points_that_cannot_run_are_saved_only_after_saying_so(page: Client) -> None:
    typed = form({"model.num_attention_heads": "2, 3"}, act="launch")
    html = page.post(NEW, typed).content.decode()
    assert "1 of 2 points cannot run" in html
    assert not Config.objects.exists()
    assert 'value="launch-anyway"' in html
    page.post(NEW, typed | {"act": "launch-anyway"})
    assert Config.objects.get().sweep == {"model.num_attention_heads": [2, 3]}
    assert Run.objects.count() == 1


def test_a_sweep_in_which_nothing_can_run_names_the_field(page: Client) -> None:
    html = page.post(NEW, form(act="save", model__num_attention_heads="3")).content.decode()
    assert 'href="#f-model-num_attention_heads"' in html or 'href="#f-model-hidden_size"' in html
    assert not Config.objects.exists()


@pytest.mark.parametrize(
    ("act", "shown"),
    [
        ("vary:train.micro_batch_size", 'name="axis" value="train.micro_batch_size"'),
        ("add:train.micro_batch_size:8", 'value="1, 8"'),
        ("drop:train.seed:0", 'value="2, 3"'),
        ("fix:train.seed", 'name="train.seed" value="1"'),
        ("engine", "Engine pipeline"),
    ],
)
def test_an_action_changes_the_form_and_keeps_the_rest(page: Client, act: str, shown: str) -> None:
    html = page.post(NEW, form({"train.seed": "1..3"}, act=act, note="kept"), headers={"HX-Request": "true"})
    assert shown in html.content.decode()
    assert 'value="kept"' in html.content.decode()
    assert "<html" not in html.content.decode()


def test_a_preset_fills_the_form(page: Client) -> None:
    html = page.post(NEW, form(act="preset", preset="zero")).content.decode()
    assert 'value="0, 1, 2, 3"' in html
    assert "DeepSpeed ZeRO stages" in html


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"train": {"micro_batch_size": 3}, "sweep": {"train.seed": [1, 2]}}', 'value="1, 2"'),
        ('{"data": {"train": {"seed": 77}}, "sweep": {}}', 'value="77"'),
        ('{"model": {"hiden_size": 64}}', "did you mean model.hidden_size?"),
        ('{"train": {"iterations": "many"}}', 'value="many"'),
        ('{"train": {"micro_batch_size": [1, 2]}}', 'value="1, 2"'),
        ('{"train.micro_batch_size": [1, 4], "train.seed": 5}', 'value="1, 4"'),
        ('{"train.micro_batch_size": [], "train.seed": 5}', "requires a list of values"),
        ('{"train": {"seed": 1}, "train": {}}', "duplicate train"),
        ("{", "not valid JSON"),
        ("", "the box is empty"),
        ("torchrun pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16", 'value="24"'),
        ("x.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --train-iters 20", 'value="20"'),
        ("python train.py", "cannot read the command line"),
    ],
)
def test_text_is_pasted_at_any_time(page: Client, text: str, shown: str) -> None:
    assert shown in page.post(NEW, form(act="paste", pasted=text)).content.decode()


def test_deepspeeds_json_is_pasted_over_the_model_that_stands_there(page: Client) -> None:
    settings = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "wall_clock_breakdown": False,
    }
    draft = form(act="paste", pasted=json.dumps(settings)) | {"model.hidden_size": "96"}
    response = page.post(NEW, draft)
    marks = json.loads(response.context["marks"]["json"])
    assert marks["parallel"] == {
        "engine": "zero",
        "data_parallel_size": 4,
        "zero_stage": 3,
        "zero_offload": "optimizer",
    }
    assert marks["train"]["precision"] == "bf16"
    assert (marks["train"]["global_batch_size"], marks["train"]["micro_batch_size"]) == (32, 4)
    assert (marks["train"]["optimizer"], marks["train"]["learning_rate"]) == ("adamw", 3e-4)
    assert marks["model"]["hidden_size"] == 96
    assert "Ignored: wall_clock_breakdown." in response.content.decode()


def test_the_json_of_a_sweep_can_be_pasted_back(page: Client) -> None:
    axes = {"train.micro_batch_size": "1, 2", "train.global_batch_size": "4, 8", "parallel.schedule": "gpipe, 1f1b"}
    typed = form(axes, {"train.global_batch_size": "train.micro_batch_size"}, act="points")
    marks = page.post(NEW, typed).context["marks"]
    assert json.loads(marks["json"])["sweep"]["train.micro_batch_size, train.global_batch_size"] == [[1, 4], [2, 8]]
    again = page.post(NEW, form(act="paste", pasted=marks["json"]))
    assert again.context["marks"]["json"] == marks["json"]


def test_a_map_of_dotted_fields_varies_them_and_keeps_the_rest(page: Client) -> None:
    text = '{"parallel.zero_stage": [0, 1, 2, 3], "train.micro_batch_size": [1, 2, 4]}'
    response = page.post(NEW, form(act="paste", pasted=text) | {"model.hidden_size": "96"})
    marks = json.loads(response.context["marks"]["json"])
    assert marks["sweep"] == json.loads(text)
    assert marks["model"]["hidden_size"] == 96
    assert "Set 0 fields and varied 2" in response.content.decode()


def test_points_are_predicted_with_totals_cost_and_a_suggestion(page: Client, catalogue: None) -> None:
    gpus = [{"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * 2**30}] * 2
    Node.objects.create(name="a", hardware={"gpus": gpus, "cores": 8})
    html = page.post(NEW, form({"train.micro_batch_size": "1, 2, 3"}, act="points")).content.decode()
    assert "1 of 3 cannot run" in html
    assert "Total of 2 predicted" in html
    assert 'value="add:' in html
    assert "faster" in html


def test_what_a_launch_takes_stands_beside_its_button_before_it(page: Client, catalogue: None) -> None:
    gpus = [{"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * 2**30}] * 2
    Node.objects.create(name="a", hardware={"gpus": gpus, "cores": 8})
    fields = form({"train.micro_batch_size": "1, 2"})
    for iterations, shown in (("2", 'class="takes"'), ("500000000", 'class="takes long"')):
        html = page.post(NEW, {**fields, "act": "refresh", "train.iterations": iterations}).content.decode()
        assert shown in html
        assert "GPU hours" in html


def test_hostile_texts_are_shown_and_saved_as_texts_without_zero_bytes(page: Client, make_config: Any) -> None:
    url = reverse("sweep-edit", args=[make_config().experiment.slug])
    assert page.get(f"{url}?version={'9' * 40}").status_code == 200
    html = page.post(NEW, form(act="save", name="<script>\0", train__iterations="<b>\0")).content.decode()
    assert "<b>" not in html.split("mistakes")[1].split("</ul>")[0].replace("<b>1 problem</b>", "")
    page.post(NEW, form(act="save", name="<script>\0", seen_digest="9" * 40))
    assert Experiment.objects.filter(name="<script>\N{REPLACEMENT CHARACTER}").exists()


def test_the_builder_needs_the_right_to_add_configurations(viewer: Client, experiment: Experiment) -> None:
    assert viewer.get(NEW).status_code == 403
    assert viewer.post(reverse("sweep-edit", args=[experiment.slug]), {"act": "save"}).status_code == 403


def test_back_undoes_what_a_button_changed(page: Client) -> None:
    fields = form(train__iterations="7", note="a & b")
    htmx = {"HX-Request": "true"}
    typed = page.post(NEW, {**fields, "act": "points"}, headers=htmx)
    before = typed.headers["HX-Replace-Url"]
    varied = page.post(NEW, {**fields, "act": "vary:train.micro_batch_size"}, headers=htmx)
    after = varied.headers["HX-Push-Url"]
    assert "HX-Push-Url" not in typed.headers
    for address, axes in ((before, 0), (after, 1)):
        context = page.get(address).context
        assert len(context["axes"]) == axes
        assert context["draft"].values == {**Draft.of_data(complete(SMALL), {}).values, "train.iterations": "7"}
        assert (context["draft"].name, context["draft"].note) == ("Batches", "a & b")


def test_a_draft_that_is_too_long_for_an_address_stays_out_of_it(page: Client) -> None:
    answer = page.post(NEW, {**form(), "question": "why " * 3000, "act": "refresh"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert not {"HX-Push-Url", "HX-Replace-Url"} & set(answer.headers)


def test_a_save_over_what_was_not_seen_is_refused_with_the_text_kept(
    page: Client, make_config: Callable[..., Config], user: Any
) -> None:
    old = make_config()
    seen, url = old.digest, reverse("sweep-edit", args=[old.experiment.slug])
    assert f'name="seen-digest" value="{seen}"' in page.get(url).content.decode()
    theirs = config_save(experiment=old.experiment, data=SMALL, sweep={"train.seed": [5]}, user=user)
    mine = form(train__iterations="7", seen_digest=seen)
    assert f'name="seen-digest" value="{seen}"' in page.post(url, mine | {"act": "refresh"}).content.decode()
    refused = page.post(url, mine | {"act": "launch"})
    content = refused.content.decode()
    assert (refused.status_code, "Nothing was saved" in content, Run.objects.count()) == (412, True, 0)
    assert re.search(r'name="train.iterations"[^>]*value="7"', content)
    assert Config.objects.get().digest == theirs.digest
    again = mine | {"act": "save", "seen-digest": theirs.digest, "as-next": "1"}
    assert 'name="as-next" value="1"' in content
    assert page.post(url, again).status_code == 302
    assert [config.version for config in Config.objects.order_by("version")] == [1, 2]
