"""What the page of an experiment shows of published documents: maps, tuning spaces, layouts, networks, ties."""

from __future__ import annotations

import json
import re
from io import BytesIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.ingest.files.imports import upload_import
from parlab.lab.models import Experiment, Run

from .test_experiments import text

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"


def imported(user: User, content: str, name: str = "page.md") -> Experiment:
    [made] = upload_import(experiment=None, name=name, stream=BytesIO(content.encode()), user=user)
    assert made.experiment is not None
    return made.experiment


def page_of(page: Client, experiment: Experiment, tail: str = "") -> str:
    return text(page.get(f"{experiment.get_absolute_url()}{tail}"))


TUNED = """# Tuned

| Model | baseline | tuned |
|---|---|---|
| small | 100.5 (mbs = 4) | 150.75 (z1_gas1_tmbspg12) |

| tuning_space | num_experiments | best_metric_val | best_exp_name |
|:---|---:|---:|:---|
| z0 | 4 | 140.1 | z0_gas1_tmbspg8 |
| z1 | 5 | 160.2 | z1_gas1_tmbspg12 |
| global | 9 | 160.2 | z1_gas1_tmbspg12 |

- Throughput Improvement over baseline: 1.5x

Tuning completed in 0:12:05.500000. Total number of experiments: 9.
"""


@pytest.mark.django_db
def test_tuning_spaces_are_spaces_and_no_runs(page: Client, user: User) -> None:
    experiment = imported(user, TUNED)
    assert [run.point for run in experiment.runs.order_by("number")] == [{"variant": "baseline"}, {"variant": "tuned"}]
    shown = page_of(page, experiment, "configuration/")
    assert "Best: z1_gas1_tmbspg12 : ZeRO stage 1, micro batch size 12, gradient accumulation 1, 1.5\u00d7" in shown
    assert "9 experiments in 2 spaces" in shown
    assert re.search(r"z0 4 140\.1 z0_gas1_tmbspg8", shown)


MAPPED = """Case
====

Setup
-----

- batch size = 2

.. code-block:: json

    {"stage_cnt": 2, "sharding_size": 2, "accum_degree": 1, "device_mapping": {
      "stage_0": {"shard_0": "GPU:0", "shard_1": "GPU:0"}, "stage_1": {"shard_0": "GPU:1", "shard_1": "GPU:1"}}}

Status
------

- ``avg_step_fps`` = 2.59
"""


@pytest.mark.django_db
def test_a_map_is_on_the_page_of_its_experiment_and_step_fps_is_a_throughput(page: Client, user: User) -> None:
    experiment = imported(user, MAPPED, "case.rst")
    shown = page_of(page, experiment, "time/")
    assert "Stages and shards" in shown
    assert "2 stages \u00d7 2 shards on 2 devices" in shown
    assert "2.59" in page_of(page, experiment, "table/")
    figure = json.loads(page.get(f"{experiment.get_absolute_url()}figures/throughput.json").content)["figure"]
    assert "fps" in json.dumps(figure["layout"]["yaxis"])
    assert "2.59" in page_of(page, experiment)


MODELS = """# Models

| Model | Hidden size | Layers | TP | PP | DP | GPUs | TFLOP/s per GPU |
|---|---|---|---|---|---|---|---|
""" + "".join(
    f"| {n}B | {1024 * n} | {12 * n} | 8 | {n} | 4 | {32 * n} | {speed} |\n"
    for n, speed in ((1, 120), (2, 140), (4, 163), (8, 163))
)


@pytest.mark.django_db
def test_a_table_of_models_has_a_figure_and_a_tie_is_a_tie(page: Client, user: User) -> None:
    experiment = imported(user, MODELS)
    shown = page_of(page, experiment)
    assert "163" in shown
    assert "0 % ahead" not in shown
    figure = json.loads(page.get(f"{experiment.get_absolute_url()}figures/throughput.json").content)["figure"]
    assert [list(trace["x"]) for trace in figure["data"]] == [[32, 64, 128, 256]]
    answer = page_of(page, experiment, "time/")
    assert "Run Throughput (TFLOP/s per GPU)" in answer, "the table shows the speed that the sentence names"


@pytest.mark.django_db
def test_scaling_compares_runs_of_the_same_layout_and_shows_their_sizes(page: Client, user: User) -> None:
    experiment = imported(user, MODELS.replace("| TP | PP | DP |", "| x | y | z |"))
    sizes = {1: (1, 1), 2: (2, 2), 3: (2, 2), 4: (2, 2)}
    for run in Run.objects.filter(experiment=experiment):
        tensor, pipeline = sizes[run.number]
        run.resolved["parallel"] |= {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
        run.point = {"GPUs": int(run.gpus or 0)}
        run.samples_per_s = 10.0 * run.number
        run.save()
    shown = page_of(page, experiment, "table/")
    assert "TP PP" in shown
    figure = json.loads(page.get(f"{experiment.get_absolute_url()}figures/efficiency.json").content)
    assert [list(trace["x"]) for trace in figure["figure"]["data"]] == [[64, 128, 256]]
    assert "run 1 is TP 1, PP 1, the others are TP 2, PP 2" in figure["caption"]


NETWORKS = """# Networks

## GPipe
| Network setting | Micro batch size: 1 | Micro batch size: 2 |
|---|---|---|
| delay 1ms bandwidth 5Gbps | 6.6 s | 6.8 s |
| delay 10ms bandwidth 1Gbps | 8.4 s | 8.6 s |

## 1F1B
| Network setting | Micro batch size: 1 | Micro batch size: 2 |
|---|---|---|
| delay 1ms bandwidth 5Gbps | 6.5 s | 6.7 s |
| delay 10ms bandwidth 1Gbps | 11.2 s | 11.0 s |
"""


@pytest.mark.django_db
def test_figures_of_a_sweep_over_networks_show_the_network(page: Client, user: User) -> None:
    experiment = imported(user, NETWORKS)
    for name in ("throughput", "heatmap"):
        figure = json.loads(page.get(f"{experiment.get_absolute_url()}figures/{name}.json?y=step_time").content)[
            "figure"
        ]
        titles = json.dumps([figure["layout"]["xaxis"]["title"], figure["layout"]["yaxis"]["title"]])
        assert "Network" in titles, name


RUNNER = """# Networks

- sequence length: 512
- My command:

      python dist_pipeline_runner.py --dist-url tcp://a --world-size 3 --batch-size 24 --embedding-dim 96 --num-layers 2
"""


@pytest.mark.django_db
def test_the_answer_of_a_sweep_over_networks_leads_to_networks(page: Client, user: User) -> None:
    experiment = imported(user, NETWORKS.replace("# Networks\n", RUNNER))
    answer = page.get(f"{experiment.get_absolute_url()}time/").content.decode()
    address = f"{experiment.get_absolute_url()}compare/networks/"
    assert f'href="{address}">Compare networks</a>' in answer
    assert page.get(address).status_code == 200
    assert "/compare/networks/" not in page.get(f"{imported(user, MODELS).get_absolute_url()}time/").content.decode()


_SWEEP = re.compile(r'<section aria-labelledby="sweep">(.*?)</section>', re.DOTALL)


def has_empty_sweep(page: Client, experiment: Experiment) -> bool:
    """Return whether a page has a section of its sweep without a table or a choice of one."""
    content = page.get(f"{experiment.get_absolute_url()}table/").content.decode()
    return any("<table" not in section and "<select" not in section for section in _SWEEP.findall(content))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("content", "name"), [(TUNED, "page.md"), (MAPPED, "case.rst"), (MODELS, "page.md"), (NETWORKS, "page.md")]
)
def test_no_page_has_an_empty_section_of_a_sweep(page: Client, user: User, content: str, name: str) -> None:
    assert not has_empty_sweep(page, imported(user, content, name))


@pytest.mark.django_db
@pytest.mark.skipif(not SEEDS.is_dir(), reason="the founding documents are not beside the project")
@pytest.mark.parametrize("number", ["000", "001", "002", "003", "004"])
def test_a_founding_document_has_no_empty_section_of_a_sweep(page: Client, user: User, number: str) -> None:
    path = next(SEEDS.glob(f"{number}_*"))
    assert not has_empty_sweep(page, imported(user, path.read_text(), path.name))
