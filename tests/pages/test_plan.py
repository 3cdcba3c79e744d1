"""Training plans by page, figure and API: all give the same answer."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qsl

import pytest
from django.test import Client

from parlab.lab.models import Device
from parlab.lab.selectors.analysis import plans as plans_selectors
from parlab.planner import cluster, predict_job
from parlab.planner.job.cluster import device
from parlab.planner.job.hardware import devices
from parlab.planner.job.presets import PRESETS, usual_question
from parlab.planner.requests.answer import answer, best_layout
from parlab.planner.requests.answer_json import written
from parlab.planner.requests.request import PlanRequest

pytestmark = pytest.mark.usefixtures("catalogue")

SMALL: dict[str, str | int] = {
    "layers": 24, "hidden": 2048, "heads": 16, "global_batch": 256, "micro_batch": 4, "tensor_parallel": 1,
    "pipeline_parallel": 1, "nodes": 2, "tokens_billion": 10,
}  # fmt: skip


def test_the_page_answers_a_question_of_its_own(viewer: Client) -> None:
    text = viewer.get("/plan/").content.decode()
    assert 'name="layers" value="96"' in text
    assert "Iteration time" in text
    assert "Memory of the most loaded GPU" in text
    assert 'hx-get="/plan/search/?' in text
    assert "Fewest nodes for this model" not in text


def test_the_search_follows_the_prediction(viewer: Client) -> None:
    text = viewer.get("/plan/search/", SMALL).content.decode()
    assert "Fewest nodes for this model" in text
    assert 'aria-label="Layouts"' in text
    assert 'id="plan"' not in text


def test_each_number_of_nodes_has_its_time_and_cost(viewer: Client) -> None:
    page = viewer.get("/plan/search/", SMALL | {"price": "2.5"}).content.decode()
    table = page[page.index('class="list sizes"') :]
    table = table[: table.index("</table>")]
    question = PlanRequest.model_validate(SMALL | {"price": 2.5})
    sizes = answer(question, device(question.gpu)).sizes
    assert table.count('<th scope="row"') == len(sizes)
    assert all(size.budget is None or (size.budget.cost or 0) > 0 for size in sizes)


_NUMBERS = re.compile(r'<td class="number[^"]*">(?:<b>)?<span title="[^"]*">[\d,]+\.?(\d*)</span>')


@pytest.mark.parametrize("address", ["/plan/", "/plan/search/", "/simulate/"])
def test_the_numbers_of_a_column_have_the_same_number_of_decimals(viewer: Client, address: str) -> None:
    markup = viewer.get(address, {} if address == "/simulate/" else SMALL | {"price": "2.5"}).content.decode()
    tables = [
        re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        for table in re.findall(r"<tbody>(.*?)</tbody>", markup, re.DOTALL)
    ]
    checked = 0
    for rows in tables:
        cells = [numbers for row in rows if (numbers := [len(decimals) for decimals in _NUMBERS.findall(row)])]
        widest = max(map(len, cells), default=0)
        for column in zip(*(row for row in cells if len(row) == widest), strict=True):
            assert len(set(column)) == 1
            checked += 1
    assert checked >= 3


def test_a_known_model_fills_the_form_and_is_predicted(viewer: Client) -> None:
    text = viewer.get("/plan/", {"model": "DeepSeek-V3", "precision": "bf16"}).content.decode()
    assert 'name="experts" value="256"' in text
    assert 'name="ffn" value="2048"' in text
    assert "Iteration time" in text
    assert 'href="/plan/model/?name=Llama%203%208B"' in text


def test_a_known_model_is_answered_in_two_clicks(viewer: Client) -> None:
    assert 'href="/plan/"' in viewer.get("/").content.decode()
    reply = viewer.get("/plan/model/", {"name": "Llama 3 8B"})
    assert reply.status_code == 302
    text = viewer.get(reply["Location"]).content.decode()
    assert "days <span" in text
    assert "at 12.29 per GPU hour: AWS p5.48xlarge" in text
    assert 'name="model" value="Llama 3 8B"' in text or 'name="layers" value="32"' in text
    query = reply["Location"].partition("?")[2]
    found = viewer.get(f"/plan/search/?{query}").content.decode()
    assert "Fewest nodes for this model" in found
    assert "Enough: training takes" in found or "Uncertain: training takes" in found
    chosen = dict(parse_qsl(query))
    question = PlanRequest.model_validate(chosen)
    assert question.job() == answer(question, device("H100 SXM")).search.fitting[0].job


@pytest.mark.slow
def test_every_known_model_has_a_layout_on_its_usual_cluster(viewer: Client) -> None:
    for entry in PRESETS:
        question = PlanRequest.model_validate(usual_question(entry) | {"tensor_parallel": 1, "pipeline_parallel": 1})
        assert best_layout(question, device("H100 SXM")), entry.name


def test_each_layout_of_the_search_leads_to_its_own_prediction(viewer: Client) -> None:
    text = viewer.get("/plan/search/", SMALL).content.decode()
    links = re.findall(r'<a href="/plan/\?([^"]+)" title="Predict this layout', text)
    question = PlanRequest.model_validate(SMALL)
    layouts = answer(question, device(question.gpu)).search.fitting
    for link, layout in zip(links, layouts, strict=False):
        opened = PlanRequest.model_validate(dict(parse_qsl(link.replace("&amp;", "&"))))
        prediction = predict_job(opened.job(), opened.cluster(device(opened.gpu)))
        assert prediction.iteration_s == pytest.approx(layout.prediction.iteration_s)
        assert prediction.memory_bytes == pytest.approx(layout.prediction.memory_bytes)


def test_a_plan_opens_the_builder_with_its_layout_and_with_the_best_ones(page: Client) -> None:
    question = {**SMALL, "tensor_parallel": 2, "pipeline_parallel": 4, "micro_batch": 2, "recompute": "full"}
    answered = page.get("/plan/", question).content.decode()
    assert "/sweeps/new/?plan=layout&amp;layers=24" in answered
    text = page.get("/sweeps/new/", question | {"plan": "layout"}).content.decode()
    assert 'value="GPT of 1.32B parameters on 16 GPUs"' in text
    for field, value in (("tensor_parallel_size", 2), ("pipeline_parallel_size", 4), ("data_parallel_size", 2)):
        assert re.search(rf'name="parallel.{field}"[^>]* value="{value}"', text), field
    swept = page.get("/sweeps/new/", question | {"plan": "layouts"}).content.decode()
    assert 'value="parallel.tensor_parallel_size"' in swept
    described = page.get("/sweeps/new/", question | {"plan": "described", "experts": 8}).content.decode()
    assert re.search(r'name="model.num_experts"[^>]* value="8"', described)
    assert '<option value="command" selected' in described


def test_a_price_of_the_catalogue_comes_before_the_list_price(viewer: Client) -> None:
    Device.objects.filter(name="A100 SXM4 80 GB").update(price_per_hour=1.5)
    assert "at 1.5 per GPU hour: the device catalogue" in viewer.get("/plan/", SMALL).content.decode()
    reply = viewer.post("/api/plan/", json.dumps(SMALL), content_type="application/json").json()
    assert reply["price_source"] == "the device catalogue"
    assert reply["budget"]["cost"] == pytest.approx(1.5 * reply["budget"]["gpu_hours"])
    stated = viewer.post("/api/plan/", json.dumps(SMALL | {"price": 3}), content_type="application/json").json()
    assert stated["price_source"] is None
    assert stated["budget"]["cost"] == pytest.approx(2 * reply["budget"]["cost"])


def test_an_unknown_model_is_refused_with_the_nearest(viewer: Client) -> None:
    text = viewer.get("/plan/", {"model": "Lama 3 8B"}).content.decode()
    assert "model Lama 3 8B is unknown; did you mean Llama 3 8B?" in text


def test_the_page_shows_nvidias_table_with_predicted_beside_published(viewer: Client) -> None:
    text = viewer.get("/plan/").content.decode()
    table = text[text.index('id="sc21"') :]
    assert table.count('<th scope="row"') == 10
    assert "502.0" in table


def test_the_page_compares_recomputations_and_the_schedules_of_a_pipeline(viewer: Client) -> None:
    one_stage = viewer.get("/plan/", SMALL).content.decode()
    assert 'id="recomputes"' in one_stage
    assert 'id="schedules"' not in one_stage
    text = viewer.get("/plan/", {**SMALL, "pipeline_parallel": 4, "nodes": 4}).content.decode()
    table = text[text.index('id="schedules"') :]
    for schedule in ("gpipe", "1f1b", "interleaved-1f1b, 2 chunks", "zb-h1", "zb-h2", "zb-v"):
        assert f">{schedule}<" in table


@pytest.mark.parametrize(
    ("field", "value"),
    [("layers", "0"), ("hidden", "99999999999"), ("nodes", "0"), ("gpus_per_node", "-8"), ("memory_gib", "0")],
)
def test_impossible_sizes_are_refused_with_field_and_value(viewer: Client, field: str, value: str) -> None:
    text = viewer.get("/plan/", {**SMALL, field: value}).content.decode()
    assert f"{field} {value} is invalid" in text
    assert "Iteration time" not in text


def test_an_unknown_gpu_is_refused_with_the_remedy(viewer: Client) -> None:
    text = viewer.get("/plan/", {**SMALL, "gpu": "X9000"}).content.decode()
    assert "gpu X9000 is not in the device catalogue; " in text
    assert "or add it in the admin (Devices)" in text


def test_a_device_of_the_admin_can_be_planned_with(viewer: Client) -> None:
    Device.objects.create(name="X9000", memory_gib=10, memory_bandwidth_gb_s=900, peak_tflops={"bf16": 100})
    text = viewer.get("/plan/", {**SMALL, "gpu": "X9000"}).content.decode()
    assert "Iteration time" in text
    assert "The planner was not validated on X9000" in text


@pytest.mark.django_db
def test_the_catalogue_comes_with_all_devices_of_the_planner() -> None:
    names = set(Device.objects.values_list("name", flat=True))
    assert names == {gpu.name for gpu in devices()}
    assert Device.objects.get(name="A100 SXM4 80 GB").gpu.peak_flops == device("A100-80GB").peak_flops


def test_extrapolation_beyond_the_measurements_is_reported(viewer: Client) -> None:
    assert "is outside the range of the measurements" not in viewer.get("/plan/", SMALL).content.decode()
    text = viewer.get("/plan/", {**SMALL, "sequence": "524288"}).content.decode()
    assert "Sequence length 524,288 is outside the range" in text


def test_htmx_gets_the_answer_alone(viewer: Client) -> None:
    text = viewer.get("/plan/", SMALL, headers={"HX-Request": "true"}).content.decode()
    assert text.lstrip().startswith('<div id="live"')
    assert "<form" not in text


def test_the_figure_has_a_point_for_each_number_of_nodes_that_trains(viewer: Client) -> None:
    data = json.loads(viewer.get("/plan/nodes.json", SMALL).content)
    question = PlanRequest.model_validate(SMALL)
    result = answer(question, device("A100 SXM4 80 GB"))
    drawn = next(trace for trace in data["figure"]["data"] if trace["name"] == "predicted")
    assert list(drawn["x"]) == [size.nodes for size in result.sizes if size.budget]
    numbers = viewer.get("/plan/nodes.csv", SMALL).content.decode().splitlines()
    assert len(numbers) == 1 + len(result.sizes)


def test_the_api_answers_what_the_planner_does(viewer: Client) -> None:
    reply = viewer.post("/api/plan/", json.dumps(SMALL), content_type="application/json")
    assert reply.status_code == 200, reply.content
    stated = PlanRequest.model_validate(SMALL)
    question, price = plans_selectors.priced(stated)
    expected = written(answer(question, device("A100 SXM4 80 GB")), price, stated.assumed)
    assert reply.json() == json.loads(expected.model_dump_json())


def test_the_api_names_field_value_and_remedy(viewer: Client) -> None:
    reply = viewer.post("/api/plan/", json.dumps({"layers": 0, "colour": "red"}), content_type="application/json")
    assert reply.status_code == 400
    assert {error["field"] for error in reply.json()["errors"]} == {"layers", "colour"}
    reply = viewer.post("/api/plan/", json.dumps({"gpu": "X9000"}), content_type="application/json")
    assert reply.json()["errors"][0]["field"] == "gpu"


def test_an_assumed_network_is_reported() -> None:
    assert cluster("A100-80GB", 16, 8).is_between_assumed
    assert not cluster("A100-80GB", 16, 8, inter_node_gbit_s=100).is_between_assumed


def test_the_cost_curve_has_the_numbers_of_the_table(viewer: Client) -> None:
    priced = SMALL | {"price": "2.5"}
    page = viewer.get("/plan/search/", priced).content.decode()
    assert 'data-figure-url="/plan/cost.json?' in page
    drawn = json.loads(viewer.get("/plan/cost.json", priced).content)
    assert drawn["caption"].startswith("Cheapest: ")
    numbers = viewer.get("/plan/cost.csv", priced).content.decode()
    assert numbers.splitlines()[0] == "nodes,gpus,days,days_low,days_high,layout,gpu_hours,cost"


def test_a_layout_outside_the_validated_range_has_its_warning_in_the_table(viewer: Client) -> None:
    deep: dict[str, str | int] = SMALL | {
        "layers": 128,
        "hidden": 1024,
        "heads": 8,
        "global_batch": 128,
        "micro_batch": 1,
        "nodes": 16,
    }
    page = viewer.get("/plan/search/", deep).content.decode()
    table = page[page.index('aria-label="Layouts"') :]
    assert '<span class="muted">Pipeline stages 128 is outside the range' in table


def test_two_clusters_stand_side_by_side_with_the_best_layout_of_each(viewer: Client) -> None:
    other: dict[str, str | int] = {
        "other_gpu": "H100 SXM",
        "other_nodes": 1,
        "other_gpus_per_node": 8,
        "other_price": "4",
    }
    text = viewer.get("/plan/beside/", SMALL | {"price": "2"} | other).content.decode()
    assert "16 × A100" in text
    assert "8 × H100 SXM" in text
    for row in ("Best layout", "Iteration (s)", "Time (days)", "Cost"):
        cells = text[text.index(f">{row}</th>") :]
        assert cells[: cells.index("</tr>")].count("<td") == 2
    wrong = viewer.get("/plan/beside/", SMALL | other | {"other_gpu": "H10 SXM"}).content.decode()
    assert "did you mean H100 SXM?" in wrong
    assert (
        "other_nodes 0 is invalid" in viewer.get("/plan/beside/", SMALL | other | {"other_nodes": 0}).content.decode()
    )
