"""Questions: forms, launched runs, answers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from parlab.fleet.questions.catalogue import QUESTIONS
from parlab.fleet.questions.form import PRESETS
from parlab.lab.models import Attempt, Config, Experiment, Node, Run, Source
from parlab.lab.services.runs import run_cancel_request
from parlab.publishing.figures.bandwidths import messages_of
from parlab.series import store
from runners.config import RunConfig, expand
from tests.conftest import SMALL, place

from .conftest import finish
from .test_engine_reads import points
from .test_experiments import EXPERIMENT, text

pytestmark = pytest.mark.django_db

ANSWER = f"{EXPERIMENT}answer/"
TIME = f"{EXPERIMENT}time/"


def filled(key: str, **changes: Any) -> dict[str, Any]:
    """What a browser sends for the form of a question as it comes."""
    values = PRESETS["small"].values
    form = QUESTIONS[key](initial={name: values[name] for name in QUESTIONS[key].model_fields})
    shown = {name: form.fields[name].prepare_value(form[name].value()) for name in form.fields}
    return {name: "" if value is None else value for name, value in (shown | changes).items()}


@pytest.mark.parametrize("key", QUESTIONS)
def test_every_question_is_asked_as_it_comes_and_launches_what_it_showed(key: str, page: Client) -> None:
    page_text = text(page.get(f"/questions/{key}/"))
    (launched,) = re.findall(r"Launch (\d+) run", page_text)
    response = page.post(f"/questions/{key}/", filled(key), follow=True)
    experiment = Experiment.objects.get()
    assert response.redirect_chain[-1][0] == experiment.get_absolute_url()
    assert f"No answer yet: 0 of {launched} runs are done." in text(response)
    assert "no node of pool default" in text(page.get(f"{experiment.get_absolute_url()}table/"))
    assert experiment.question == QUESTIONS[key].heading
    assert experiment.runs.count() == int(launched) >= 1
    assert experiment.name in text(page.get("/questions/"))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("key", [key for key, kind in QUESTIONS.items() if kind.model_fields])
def test_every_model_to_start_from_can_run(key: str, preset: str) -> None:
    kind = QUESTIONS[key]
    values = {name: PRESETS[preset].values[name] for name in kind.model_fields}
    form = kind(filled(key) | values)
    assert form.is_valid(), form.errors
    assert all(point.config for point in expand(form.data_of_config(), form.sweep()))


def test_the_fields_of_a_question_reach_the_engine() -> None:
    form = QUESTIONS["fewest-nodes"](filled("fewest-nodes", num_layers=6, at_most=8, engine="zero"))
    assert form.is_valid(), form.errors
    config = RunConfig.model_validate(form.data_of_config())
    assert (config.capacity.find, config.capacity.engine, config.capacity.at_most) == ("processes", "zero", 8)
    assert (config.model.num_layers, config.parallel.zero_stage) == (6, 3)
    assert config.train.global_batch_size % 7 == 0  # every number of ranks is tried
    assert config.launcher.memory_limit_mib == 512


def test_the_limit_for_processes_on_a_cpu_is_not_set_where_gpus_are(page: Client) -> None:
    Node.objects.create(name="gpu", pool="gpus", hardware={"gpus": [{}]})
    form = QUESTIONS["largest-model"](filled("largest-model", pool="gpus"))
    assert form.is_valid(), form.errors
    assert form.data_of_config()["launcher"]["memory_limit_mib"] is None


@pytest.mark.parametrize(
    ("key", "field", "value", "message"),
    [
        (
            "largest-model",
            "num_attention_heads",
            "3",
            "num_attention_heads 3 does not divide hidden_size 256; use 1, 2",
        ),
        ("largest-model", "hidden_size", "", "Hidden size is required; enter a value"),
        ("throughput", "ranks", "1, two", "is not a list of numbers; use a list like 1, 2, 4"),
        ("throughput", "ranks", "1,2,3,4,5,6,7,8,9,10,11,12,13", "the list has 13 numbers; use at most 12"),
        ("throughput", "tensor_parallel_size", "2", "does not divide 1 ranks; use multiples of 2"),
        ("throughput", "iterations", "1", "use at least 2"),
        ("bandwidth", "ranks", "1", "none of the"),
        ("bandwidth", "min_bytes", "4", "is less than one 4-byte number per rank for 2 ranks"),
    ],
)
def test_problems_are_shown_at_their_fields_before_and_after_submission(
    key: str, field: str, value: str, message: str, page: Client
) -> None:
    data = filled(key, **{field: value})
    if key == "bandwidth" and field == "ranks":
        message = "a collective operation requires several ranks"
    live = page.post(f"/questions/{key}/preview/", data, headers={"HX-Request": "true"})
    content = html.unescape(live.content.decode())
    assert message in content
    assert re.search(r'<button[^>]*id="ask" disabled', content)
    assert 'hx-swap-oob="true"' in content
    sent = page.post(f"/questions/{key}/", data)
    assert message in html.unescape(sent.content.decode())
    assert not Experiment.objects.exists()


def test_the_same_question_twice_makes_two_experiments(page: Client) -> None:
    for _ in range(2):
        page.post("/questions/bandwidth/", filled("bandwidth"))
    names = list(Experiment.objects.order_by("pk").values_list("name", flat=True))
    assert names == ["Bandwidth of all-reduce on default", "Bandwidth of all-reduce on default (2)"]


def test_who_may_only_look_reads_answers_and_asks_nothing(viewer: Client, experiment: Experiment) -> None:
    assert "You can read answers but not launch runs" in text(viewer.get("/questions/"))
    assert viewer.get(ANSWER, follow=True).status_code == 200
    assert viewer.get("/questions/bandwidth/").status_code == 403
    assert viewer.post("/questions/bandwidth/", filled("bandwidth")).status_code == 403
    assert viewer.post("/questions/bandwidth/preview/", {}).status_code == 403


def test_an_unknown_question_is_not_found(page: Client) -> None:
    assert page.get("/questions/meaning-of-life/").status_code == 404


def test_throughput_is_answered_with_every_run_beside_each_other(page: Client, four_runs: list[Run]) -> None:
    resolved = four_runs[2].resolved
    wider = {"parallel": {**resolved["parallel"], "data_parallel_size": 2}, "cluster": {"nodes": 1, "gpus_per_node": 4}}
    Run.objects.filter(number=3).update(
        resolved=resolved | wider,
        summary=four_runs[2].summary | {"gpu_util_pct": 87.6, "ms_per_sample": 50.0},
    )
    page_text = text(page.get(TIME))
    row = page_text[page_text.rindex("#3") :]
    assert "128 to 256 88" in row
    assert "forward-compute" in page_text


def test_on_a_cpu_utilisation_is_that_of_the_cores_the_ranks_may_use(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt()
    place(attempt, Node.objects.create(name="a", hardware={"cpu_cores": 64}))
    finish(attempt)
    samples = {0: 5.0, 1: 180.0, 2: 190.0, 3: 170.0, 4: 20.0}
    store.append(attempt.pk, {("cpu_pct", -1): points(samples)})
    page_text = text(page.get(TIME))
    assert "128 to 256 90 167" in page_text  # two ranks of one thread: 180 of 200 %


def test_a_search_is_answered_with_its_trials(
    page: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    data = SMALL | {"parallel": {"engine": "capacity"}, "capacity": {"find": "processes", "at_most": 4}}
    attempt = make_attempt(config=make_config(data=data), state="finished")
    series = {"processes": {1: 1.0, 2: 2.0}, "fits": {1: 0.0, 2: 1.0}}
    store.append(attempt.pk, {(name, 0): points(values) for name, values in series.items()})
    assert "This model needs at least 2 processes; 1 run out of memory." in text(page.get(f"{EXPERIMENT}table/"))
    assert 'data-panel="trials:1"' in page.get(EXPERIMENT).content.decode()


def test_an_answer_grows_and_says_when_a_run_failed(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    content = page.get(ANSWER, follow=True).content.decode()
    url = html.unescape(content.split('id="runs"')[1].split('hx-get="')[1].split('"')[0])
    assert page.get(url).status_code == 204
    finish(attempt, state="failed", reason="rank 0: ValueError: no")
    live = page.get(url)
    assert "No answer: run 1 failed: rank 0: ValueError: no." in text(live)
    assert "hx-get" not in live.content.decode()


def test_the_answer_of_an_experiment_without_runs_says_so(page: Client, experiment: Experiment) -> None:
    assert "No configuration yet." in text(page.get(ANSWER, follow=True))


def test_the_earlier_address_of_an_answer_leads_to_its_experiment(page: Client, four_runs: list[Run]) -> None:
    response = page.get(f"{ANSWER}?version=1")
    assert response.status_code == 308
    assert response.headers["Location"] == f"{EXPERIMENT}?version=1"


def test_the_time_of_many_runs_takes_few_queries(
    page: Client, four_runs: list[Run], django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(40):
        page.get(TIME)


NCCL = b"""# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    100.0   10.49   19.66      0    100.0   10.49   19.66      0
     2097152        524288     float     sum      -1    100.0   20.97   39.32      0    100.0   20.97   39.32      0
"""


def test_bandwidths_of_imported_nccl_tests_are_drawn_too(page: Client, make_source: Callable[..., Source]) -> None:
    source = make_source(NCCL, name="nccl.log")
    (first, second) = messages_of(source.document, "nccl.log")
    assert (first.size, first.algbw, first.elements, first.operation) == (2**20, 10.49e9, 262144, "all-reduce")
    assert second.ranks == 16
    drawn = json.loads(page.get(f"{EXPERIMENT}figures/bandwidth.json").content)
    assert "reaches a busbw of 39.3" in drawn["caption"]
    assert page.get(EXPERIMENT).status_code == 200


def test_an_imported_bandwidth_is_an_answer_too(
    page: Client, make_source: Callable[..., Source], make_attempt: Callable[..., Attempt]
) -> None:
    make_source(NCCL, name="nccl.log")
    run = make_attempt(state="finished").run
    Run.objects.filter(pk=run.pk).update(origin=Run.Origin.IMPORTED, resolved={})
    assert 'data-panel="figure:bandwidth"' in page.get(EXPERIMENT).content.decode()
    page_text = text(page.get(f"{EXPERIMENT}table/"))
    assert "1048576 262144 float sum 100 10.5 19.7 0" in page_text


def test_without_tokens_the_answer_is_in_samples(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    run = finish(make_attempt())
    Run.objects.filter(pk=run.pk).update(tokens_per_s=None)
    assert "8.00\N{NARROW NO-BREAK SPACE}samples/s" in page.get(EXPERIMENT).content.decode()
    assert "Throughput (samples/s)" in text(page.get(TIME))


TRIALS = b"".join(
    b"%d:\n duration: %s sec\n algo throughput: %s bps, %s Gbps\n busbw: %s  Gbps\n" % (rank, *row)
    for rank in (0, 1)
    for row in (
        (b"2.0000", b"8000000000.0", b"8.0000", b"4.0000"),
        (b"1.0000", b"16000000000.0", b"16.0000", b"8.0000"),
    )
)


def test_trials_of_all_reduce_bench_are_one_size_with_the_first_apart(make_source: Callable[..., Source]) -> None:
    source = make_source(TRIALS, name="bench.log")
    assert source.format == "all-reduce-bench"
    (message,) = messages_of(source.document, "bench.log")
    assert (message.size, message.algbw, message.busbw) == (10**9, 1e9, 1e9)
    assert (message.time_s, message.first_time_s, message.ranks) == (1.0, 2.0, 2)


def test_a_cancelled_search_says_what_it_found_so_far(
    page: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    data = SMALL | {"parallel": {"engine": "capacity"}, "capacity": {"find": "num_layers", "at_most": 8}}
    attempt = make_attempt(config=make_config(data=data), state="queued")
    run_cancel_request(run=attempt.run)
    assert "No answer: run 1 was cancelled: cancelled before it started." in text(page.get(EXPERIMENT))
