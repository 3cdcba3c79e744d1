"""Training plans by page, figure and API: all give the same answer."""

from __future__ import annotations

import json
import re
from datetime import date
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.test import Client

from parlab.charts.format import significant
from parlab.lab.models import Device
from parlab.lab.selectors.analysis import plans as plans_selectors
from parlab.planner import cluster, predict_job
from parlab.planner.job.cluster import device
from parlab.planner.job.hardware import devices
from parlab.planner.job.presets import PRESETS, preset, usual_question
from parlab.planner.requests.answer import answer, best_layout, outline, with_some_layout
from parlab.planner.requests.answer_json import written
from parlab.planner.requests.request import PlanRequest

pytestmark = pytest.mark.usefixtures("catalogue")

SMALL: dict[str, str | int] = {
    "layers": 24, "hidden": 2048, "heads": 16, "global_batch": 256, "micro_batch": 4, "tensor_parallel": 1,
    "pipeline_parallel": 1, "nodes": 2, "tokens_billion": 10,
}  # fmt: skip


def test_the_page_answers_in_a_sentence_and_pictures(viewer: Client) -> None:
    text = viewer.get("/plan/", SMALL | {"wanted_days": 30}).content.decode()
    assert 'name="layers" value="24"' in text
    sentence = text[text.index('class="ans"') :]
    sentence = re.sub("<[^>]+>", "", sentence[sentence.index(">") + 1 : sentence.index("</p>")])
    days = outline(PlanRequest.model_validate(SMALL), device("A100 SXM4 80 GB")).budget.days
    assert sentence.startswith(f"{significant(days)} days (")
    assert "Fits in memory: &gt; 99" in sentence
    assert "Meets 30 days: " in sentence
    assert "Time of a step" in text
    assert "Memory of the fullest GPU" in text
    assert re.search(r"<b>[\d.]+\s?GiB</b> by these settings, [\d.]+.[\d.]+ in 80&nbsp;% of cases", text)
    assert 'hx-get="/plan/layouts/?' in text
    assert "Fewest nodes for this model" not in text


def test_the_first_visit_opens_a_known_model_in_its_best_layout(viewer: Client) -> None:
    reply = viewer.get("/plan/", follow=True)
    assert '<option value="Llama 3 70B" selected>' in reply.content.decode()
    assert "pipeline_parallel" in reply.redirect_chain[-1][0]


def test_the_search_follows_the_prediction(viewer: Client) -> None:
    text = viewer.get("/plan/layouts/", SMALL).content.decode()
    assert 'aria-label="Best layouts"' in text
    assert 'id="frontier" hx-swap-oob' in text
    more = viewer.get("/plan/search/", SMALL).content.decode()
    assert "Fewest nodes for this model" in more
    assert 'id="plan"' not in more


def test_the_layout_is_a_product_of_all_its_sizes(viewer: Client) -> None:
    shaped: dict[str, Any] = SMALL | {"context_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 2}
    text = viewer.get("/plan/", shaped).content.decode()
    product = text[text.index('class="prod"') :]
    sizes = [int(size) for size in re.findall(r"<b>(\d+)</b>", product[: product.index("</div>")])]
    assert sizes == [2, 2, 2, 2, 16]


def test_each_number_of_nodes_has_its_time_and_cost(viewer: Client) -> None:
    page = viewer.get("/plan/search/", SMALL | {"price": "2.5"}).content.decode()
    table = page[page.index('class="list sizes"') :]
    table = table[: table.index("</table>")]
    question = PlanRequest.model_validate(SMALL | {"price": 2.5})
    sizes = answer(question, device(question.gpu)).sizes
    assert table.count('<th scope="row"') == len(sizes)
    assert all(size.budget is None or (size.budget.cost or 0) > 0 for size in sizes)


_NUMBERS = re.compile(r'<td class="(?:number|r)[^"]*">(?:<b>)?<span title="[^"]*">[\d,]+\.?(\d*)</span>')


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
    assert "Time of a step" in text
    assert '<option value="Llama 3 8B">' in text


@pytest.mark.parametrize(
    ("name", "tokens", "precision"),
    [("Llama 3.1 405B", 16.8e6, "bf16"), ("GPT-3 175B", 3.1e6, "bf16"), ("DeepSeek-V3", 62.9e6, "fp8")],
)
def test_presets_have_the_batches_and_precision_of_their_authors(name: str, tokens: float, precision: str) -> None:
    entry = preset(name)
    assert entry
    for gpus in (512, 16_384):
        question = usual_question(entry, gpus)
        assert question["global_batch"] * entry.model.sequence_length == pytest.approx(tokens, rel=0.02)
        assert question["precision"] == precision


def test_a_known_model_is_answered_in_two_clicks(viewer: Client) -> None:
    assert 'href="/plan/"' in viewer.get("/").content.decode()
    reply = viewer.get("/plan/model/", {"name": "Llama 3.2 1B"})
    assert reply.status_code == 302
    text = viewer.get(reply["Location"]).content.decode()
    assert "days</b> <span" in text
    assert "AWS p5.48xlarge on demand" in text
    assert 'name="model" value="Llama 3.2 1B"' in text or 'name="layers" value="32"' in text
    query = reply["Location"].partition("?")[2]
    question = PlanRequest.model_validate(dict(parse_qsl(query)))
    assert question.job() == best_layout(question, device("H100 SXM"))


@pytest.mark.slow
def test_every_known_model_has_a_layout_on_its_usual_cluster(viewer: Client) -> None:
    for entry in PRESETS:
        question = with_some_layout(usual_question(entry))
        assert best_layout(question, device("H100 SXM")), entry.name


def test_each_layout_of_the_search_leads_to_its_own_prediction(viewer: Client) -> None:
    text = viewer.get("/plan/layouts/", SMALL).content.decode()
    table = text[text.index("<tbody>") : text.index("</tbody>")]
    links = re.findall(r'<th scope="row"><a href="/plan/\?([^"]+)"', table)
    question = PlanRequest.model_validate(SMALL)
    layouts = answer(question, device(question.gpu)).search.fitting
    assert len(links) >= 5
    for link, layout in zip(links[:5], layouts, strict=False):
        opened = PlanRequest.model_validate(dict(parse_qsl(link.replace("&amp;", "&"))))
        prediction = predict_job(opened.job(), opened.cluster(device(opened.gpu)))
        assert prediction.iteration_s == pytest.approx(layout.prediction.iteration_s)
        assert prediction.memory_bytes == pytest.approx(layout.prediction.memory_bytes)


def picked(viewer: Client, **fields: str) -> PlanRequest:
    reply = viewer.get("/plan/model/", fields)
    assert reply.status_code == 302
    return PlanRequest.model_validate(dict(parse_qsl(reply["Location"].partition("?")[2])))


def test_without_a_number_of_gpus_the_fewest_are_chosen_that_keep_the_deadline(viewer: Client) -> None:
    question = picked(viewer, name="Llama 3.2 1B", gpus="", gpu="H100 SXM", limit="20")
    price = plans_selectors.priced(question)[0]
    assert outline(price, device("H100 SXM")).budget.chance(20) >= 0.8
    half = picked(viewer, name="Llama 3.2 1B", gpus=str(question.gpus // 2), gpu="H100 SXM", limit="20")
    assert outline(half, device("H100 SXM")).budget.chance(20) < 0.8


def test_a_limit_of_the_cost_takes_as_many_gpus_as_it_pays_for(viewer: Client) -> None:
    question = picked(viewer, name="Llama 3.2 1B", gpus="", gpu="H100 SXM", limit="5", unit="cost")
    assert (question.wanted_cost, question.wanted_days) == (5e6, None)
    text = viewer.get("/plan/", question.model_dump(exclude_none=True)).content.decode()
    assert "Stays below USD 5.00" in text


def test_other_fields_stay_while_the_model_does(viewer: Client) -> None:
    kept = {"model": "Llama 3.2 1B", "tokens_billion": "100", "network_gbit_s": "800", "global_batch": "256"}
    same = picked(viewer, name="Llama 3.2 1B", gpus="16", gpu="H100 SXM", **kept)
    assert (same.tokens_billion, same.network_gbit_s, same.gpus) == (100, 800, 16)
    other = picked(viewer, name="Llama 3 8B", gpus="16", gpu="H100 SXM", **kept)
    assert (other.tokens_billion, other.network_gbit_s) == (15_000, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": "many"}, "GPUs &#x27;many&#x27; is no number of GPUs"),
        ({"gpus": "0"}, "GPUs &#x27;0&#x27; is no number of GPUs"),
        ({"limit": "soon"}, "limit &#x27;soon&#x27; is no number of days"),
        ({"limit": "nan"}, "limit &#x27;nan&#x27; is no number of days"),
        ({"gpu": "X9000"}, "gpu X9000 is not in the device catalogue"),
    ],
)
def test_wrong_picks_are_refused_with_the_remedy(viewer: Client, fields: dict[str, str], message: str) -> None:
    reply = viewer.get("/plan/model/", {"name": "Llama 3.2 1B"} | fields, follow=True)
    assert reply.status_code == 200
    assert message in reply.content.decode()


def test_a_device_may_be_typed_in_part_and_an_unknown_one_leaves_the_model(viewer: Client) -> None:
    reply = viewer.get("/plan/model/", {"name": "Llama 3 8B", "gpus": "64", "gpu": "h100"})
    assert "gpu=H100+SXM" in reply["Location"]
    shown = viewer.get("/plan/model/", {"name": "Llama 3 8B", "gpus": "64", "gpu": "Abacus"}, follow=True)
    body = shown.content.decode()
    assert body.count("gpu Abacus is not in the device catalogue") == 1
    assert shown.context["picks"].model == "Llama 3 8B"


def test_a_plan_that_misses_its_deadline_names_what_would_meet_it(viewer: Client) -> None:
    late = SMALL | {"gpu": "H100 SXM", "tokens_billion": "300", "wanted_days": "4", "nodes": 1}
    text = viewer.get("/plan/layouts/", late).content.decode()
    remedies = text[text.index('id="remedies"') :]
    remedy = re.search(r'href="/plan/model/\?([^"]+)"', remedies)
    assert remedy
    fields = dict(parse_qsl(remedy[1].replace("&amp;", "&")))
    question = picked(viewer, **fields)
    assert outline(question, device(question.gpu)).budget.chance(4) >= 0.8
    early = viewer.get("/plan/layouts/", late | {"wanted_days": "4000"}).content.decode()
    assert "To meet it" not in early


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
    own = Device.objects.get(name="A100 SXM4 80 GB")
    own.prices.create(per_hour=1.5, seen_on=date(2026, 11, 2), source="the contract of 2026")
    text = viewer.get("/plan/", SMALL).content.decode()
    assert 'title="the contract of 2026"' in text
    assert "on demand price of 2026-11-02" in text
    reply = viewer.post("/api/plan/", json.dumps(SMALL), content_type="application/json").json()
    assert reply["price_source"] == "the contract of 2026"
    assert reply["budget"]["cost"] == pytest.approx(1.5 * reply["budget"]["gpu_hours"])
    stated = viewer.post("/api/plan/", json.dumps(SMALL | {"price": 3}), content_type="application/json").json()
    assert stated["price_source"] is None
    assert stated["budget"]["cost"] == pytest.approx(2 * reply["budget"]["cost"])


def test_offers_are_compared_with_what_preemptions_cost(viewer: Client) -> None:
    own = Device.objects.get(name="A100 SXM4 80 GB")
    assert "Offers" not in viewer.get("/plan/", SMALL).content.decode()
    own.prices.create(offer="on-demand", per_hour=4.0, currency="EUR")
    own.prices.create(offer="spot", per_hour=1.0, currency="EUR", lost_percent=20)
    response = viewer.get("/plan/", SMALL)
    on_demand, spot = response.context["pictures"].offers
    assert spot.days == pytest.approx(on_demand.days / 0.8)
    assert spot.cost == pytest.approx(on_demand.cost / 4 / 0.8)
    assert "for <b>EUR" in response.content.decode()
    assert "Offers" in response.content.decode()


def test_an_unknown_model_is_refused_with_the_nearest(viewer: Client) -> None:
    text = viewer.get("/plan/", {"model": "Lama 3 8B"}).content.decode()
    assert "model Lama 3 8B is unknown; did you mean Llama 3 8B?" in text


def test_a_known_model_stands_beside_its_published_runs(viewer: Client) -> None:
    query = viewer.get("/plan/model/", {"name": "Llama 3.1 405B", "gpus": "16384"})["Location"].partition("?")[2]
    text = viewer.get(f"/plan/?{query}").content.decode()
    panel = text[text.index("Against a published run") :]
    assert re.search(r"Meta, 16,384: [34]\d\d, published 400 TFLOP/s per GPU", panel)
    assert "Against a published run" not in viewer.get("/plan/", SMALL).content.decode()


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
    assert "Time of a step" not in text


def test_an_unknown_gpu_is_refused_with_the_remedy(viewer: Client) -> None:
    text = viewer.get("/plan/", {**SMALL, "gpu": "X9000"}).content.decode()
    assert "gpu X9000 is not in the device catalogue; " in text
    assert "or add it in the admin (Devices)" in text


def test_a_device_of_the_admin_can_be_planned_with(viewer: Client) -> None:
    Device.objects.create(name="X9000", memory_gib=10, memory_bandwidth_gb_s=900, peak_tflops={"bf16": 100})
    text = viewer.get("/plan/", {**SMALL, "gpu": "X9000"}).content.decode()
    assert "Time of a step" in text
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


def test_days_against_cost_have_their_numbers(viewer: Client) -> None:
    priced = SMALL | {"price": "2.5", "wanted_days": "10", "tokens_billion": "300"}
    assert 'href="/plan/cost.csv?' in viewer.get("/plan/", priced).content.decode()
    lines = viewer.get("/plan/cost.csv", priced).content.decode().splitlines()
    assert lines[0] == "device,gpus,days,days_low,days_high,cost,fits_probability,layout"
    assert {line.split(",")[0] for line in lines[1:]} >= {"A100 SXM4 80 GB", "B200"}
    assert all(2.5 <= float(line.split(",")[2]) <= 40 or line.startswith("A100 SXM4 80 GB,16,") for line in lines[1:])


def test_a_layout_outside_the_validated_range_has_a_warning(viewer: Client) -> None:
    deep: dict[str, str | int] = SMALL | {
        "layers": 128, "hidden": 1024, "heads": 8, "global_batch": 128, "micro_batch": 1, "nodes": 16,
        "pipeline_parallel": 128,
    }  # fmt: skip
    assert "Pipeline stages 128 is outside the range" in viewer.get("/plan/", deep).content.decode()


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
