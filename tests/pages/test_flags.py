"""A command line, a configuration or a map of shards is read into values of a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from django.test import Client

from parlab.ingest.command_flags import config_of_command
from runners.config import RunConfig, check

pytestmark = pytest.mark.django_db
URL = "/api/configurations/read/"
BERT = """torchrun --nproc_per_node 8 pretrain_bert.py --tensor-model-parallel-size 2 \\
    --pipeline-model-parallel-size 2 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 \\
    --max-position-embeddings 512 --lr 0.0001 --lr-decay-iters 990000 --train-iters 2000000 --min-lr 0.00001 \\
    --split 949,50,1 --fp16 \\
    --micro-batch-size 4 --global-batch-size 32 --log-interval 10 --checkpoint-activations"""


def test_megatrons_flags_are_read_as_the_engine_reads_them() -> None:
    flags = config_of_command(BERT)
    config, problems = check(flags.data)
    assert problems == []
    assert config is not None
    assert (config.model.kind, config.model.num_layers, config.model.vocab_size) == ("bert", 24, 29184)
    assert config.parallel.engine == "megatron"
    assert (config.world_size, config.parallel.data_parallel_size) == (8, 2)
    assert (config.train.precision, config.train.recompute, config.train.gradient_clipping) == ("fp16", "full", 1.0)
    assert (config.train.optimizer, config.train.log_interval, config.train.learning_rate) == ("adamw", 10, 1e-4)
    assert config.train.iterations == 10
    full = "train_iters (2,000,000 is a full training; set the iterations yourself)"
    assert flags.unread == ["lr_decay_iters", "min_lr", "split", full]


def test_the_iterations_of_a_short_command_are_read() -> None:
    flags = config_of_command(BERT.replace("--train-iters 2000000", "--train-iters 20"))
    assert flags.data["train"]["iterations"] == 20
    assert flags.unread == ["lr_decay_iters", "min_lr", "split"]


def test_what_only_megatron_says_is_read_too() -> None:
    flags = BERT.replace("bert.py", "gpt.py") + (
        " --weight-decay 0 --clip-grad 0 --loss-scale 1024 --num-layers-per-virtual-pipeline-stage 4"
    )
    config = check(config_of_command(flags).data)[0]
    assert config is not None
    assert (config.parallel.schedule, config.parallel.virtual_stages) == ("interleaved-1f1b", 3)
    assert (config.train.optimizer, config.train.gradient_clipping, config.train.loss_scale) == ("adam", 0.0, 1024.0)


def test_processes_that_no_flag_spends_are_data_parallel() -> None:
    sizes = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 2"
    config = check(config_of_command(f"torchrun --nproc-per-node 4 x.py {sizes} --global-batch-size 16").data)[0]
    assert config is not None
    assert config.parallel.data_parallel_size == config.world_size == 4


MAP = {
    "mode": "sharding",
    "sharding_size": 2,
    "sharding_dim": -1,
    "stage_cnt": 2,
    "accum_degree": 1,
    "device_mapping": {f"stage_{n}": {"shard_0": f"GPU:{n}", "shard_1": f"GPU:{n}"} for n in (0, 1)},
}


def test_a_pasted_map_of_shards_fills_its_section_and_leaves_the_rest_alone(page: Client) -> None:
    answer = page.post(URL, {"text": json.dumps(MAP, indent=2)}).json()
    assert answer["values"].pop("parallel__engine") == "sharding"
    assert set(answer["values"]) == {f"sharding__{name}" for name in MAP}
    assert json.loads(answer["values"]["sharding__device_mapping"]) == MAP["device_mapping"]
    assert "a map of 2 x 2 shards" in answer["summary"]


def test_a_pasted_configuration_is_completed_by_defaults(page: Client) -> None:
    data = RunConfig.model_validate({"model": {"num_layers": 6}, "train": {"precision": "bf16"}}).resolved()
    answer = page.post(URL, {"text": json.dumps(data)}).json()
    assert answer["values"]["model__num_layers"] == 6
    assert answer["values"]["train__precision"] == "bf16"
    assert "The layout has 1 rank." in answer["summary"]


def test_a_pasted_command_becomes_values(page: Client) -> None:
    answer = page.post(URL, {"text": BERT}).json()
    assert answer["values"]["parallel__tensor_parallel_size"] == 2
    assert answer["values"]["model__kind"] == "bert"
    assert "The layout has 8 ranks." in answer["summary"]
    assert "Ignored flags: lr_decay_iters, min_lr, split, train_iters (2,000,000 is a" in answer["summary"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"mode": ', "is not valid JSON"),
        ('{"stage": 3}', "unknown section stage"),
        ('{"stage_cnt": "many"}', "sharding.stage_cnt"),
        ('{"model": {"layers": 3}}', "unknown field model.layers"),
        ('{"model": 3}', "model"),
        ('{"device_mapping": {"stage_0": 5}}', "sharding.device_mapping"),
        ("rm -rf / --no-preserve-root", "--num-layers and --hidden-size are required"),
        ("x.py --num-layers 0 --hidden-size -1", "--num-layers and --hidden-size are required"),
        ("x.py --num-layers " + "9" * 500 + " --hidden-size 8", "--num-layers and --hidden-size are required"),
    ],
)
def test_what_is_no_training_is_refused_with_a_remedy(page: Client, text: str, message: str) -> None:
    response = page.post(URL, {"text": text})
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]


def test_a_command_with_problems_is_read_and_reports_them(page: Client) -> None:
    answer = page.post(URL, {"text": BERT.replace("--num-attention-heads 16", "--num-attention-heads 15")}).json()
    assert "Problem: num_attention_heads 15 does not divide" in answer["summary"]
    assert answer["values"]["model__num_attention_heads"] == 15


def test_who_edits_no_configurations_reads_no_flags(viewer: Client, allowed: Callable[..., Client]) -> None:
    assert viewer.post(URL, {"text": BERT}).status_code == 403
    assert allowed("add_config").post(URL, {"text": BERT}).status_code == 200
