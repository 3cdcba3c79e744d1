"""Stages split into shards on mapped devices train like one process; invalid device mappings are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.config import RunConfig, check
from runners.engines.process.process_group import Place, join, leave
from runners.engines.process.rank import Rank
from runners.engines.sharding import ShardedTrainer
from tests.engines.ranks import TIMEOUT, run_ranks, train_in_one_process
from tests.engines.started import run_engine

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
STEPS, RANKS = 5, 3
MODEL = {"num_layers": 3, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}


def mapping(*stages: str, kind: str = "CPU") -> dict[str, dict[str, str]]:
    """Return a device mapping from one string of device numbers per stage: "001" is two shards on 0 and one on 1."""
    return {
        f"stage_{stage}": {f"shard_{shard}": f"{kind}:{number}" for shard, number in enumerate(numbers)}
        for stage, numbers in enumerate(stages)
    }


BERT = {"kind": "bert", "attention_mask": "bidirectional"}


def make_data(mode: str, dim: int, accum: int, *stages: str, model: Mapping[str, Any] | None = None) -> dict[str, Any]:
    section = {
        "mode": mode,
        "sharding_size": len(stages[0]),
        "sharding_dim": dim,
        "stage_cnt": len(stages),
        "accum_degree": accum,
        "device_mapping": mapping(*stages),
    }
    train = {"global_batch_size": 8, "micro_batch_size": 8 // accum, "learning_rate": 1e-3, "iterations": 4}
    parallel = {"engine": "sharding"}
    whole = {"model": {**MODEL, **(model or {})}, "train": train, "parallel": parallel}
    return whole | {"sharding": section, "cluster": {"device": "cpu"}}


CASES = {
    "outputs cut, unevenly placed": make_data("sharding", 0, 1, "0120", "1122"),
    "inputs cut, unevenly placed": make_data("sharding", -1, 1, "0120", "1122"),
    "outputs cut, stages in a circle": make_data("hybrid", 0, 4, "01", "12", "20"),
    "inputs cut, stages in a circle": make_data("hybrid", -1, 4, "01", "12", "20"),
    "one shard on many devices' way": make_data("hybrid", 0, 2, "00", "12"),
    # The next-sentence head has two outputs: four shards do not divide them, so it stays whole.
    "a bert, outputs cut": make_data("sharding", 0, 1, "0120", "1122", model=BERT),
    "a bert, inputs cut": make_data("hybrid", -1, 2, "0011", "1202", "2001", model=BERT),
    "outputs cut, staged": make_data("hybrid", 0, 2, "0120", "1122"),
    "inputs cut, staged": make_data("hybrid", -1, 2, "01", "12", "20"),
    "a pipeline": make_data("pipeline", 0, 4, "0", "1", "2"),
}


def _rank(number: int, world_size: int, configs: Mapping[str, RunConfig], directory: Path) -> None:
    torch.set_num_threads(1)
    place = Place(number, world_size, number, world_size, f"file://{directory}/rendezvous")
    join(place, CPU, TIMEOUT)
    losses = {}
    for name, config in configs.items():
        trainer = ShardedTrainer(Rank(config, place), is_staged=name.endswith("staged"))
        losses[name] = [trainer.train_step(step)[1] for step in range(1, STEPS + 1)]
    torch.save(losses, directory / f"{number}.pt")
    leave()


def train(cases: Mapping[str, Any], world_size: int, directory: Path) -> dict[str, list[list[float | None]]]:
    """Train all cases on the same processes; return the losses of each rank by the names of the cases."""
    configs = {name: RunConfig.model_validate(data) for name, data in cases.items()}
    run_ranks(_rank, world_size, configs, directory)
    saved = [torch.load(directory / f"{rank}.pt") for rank in range(world_size)]
    return {name: [losses[name] for losses in saved] for name in configs}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[float | None]]]:
    """Losses of each rank by the names of the cases."""
    return train(CASES, RANKS, tmp_path_factory.mktemp("sharding"))


def assert_equal_to_one_process(data: dict[str, Any], trained: list[list[float | None]]) -> None:
    """The ranks of the last stage have the losses of one process; the other ranks have none."""
    config = RunConfig.model_validate(data)
    expected = train_in_one_process(config, STEPS, CPU).losses
    last = {int(device[4:]) for device in config.sharding.grid[-1]}
    for rank, losses in enumerate(trained):
        assert losses == (pytest.approx(expected, abs=1e-4) if rank in last else [None] * STEPS)
    assert expected[0] is not None
    assert expected[-1] is not None
    assert expected[0] - expected[-1] > 0.05


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_those_of_one_process(name: str, trained: dict[str, list[list[float | None]]]) -> None:
    assert_equal_to_one_process(CASES[name], trained[name])


# The published mapping of BERT-large with smaller sizes, and two stages over eight devices.
EIGHT_STAGES = [str(stage) * 4 for stage in range(8)]
ON_EIGHT = {
    f"{name}, dim {dim}": make_data(mode, dim, accum, *stages, model=BERT | {"num_layers": 8})
    for dim in (0, -1)
    for name, mode, accum, stages in (
        ("eight stages", "sharding", 1, EIGHT_STAGES),
        ("eight shards", "hybrid", 2, ["01234567", "76543210"]),
    )
}


def test_mappings_of_eight_devices_train_like_one_process(tmp_path: Path) -> None:
    for name, losses in train(ON_EIGHT, 8, tmp_path).items():
        assert_equal_to_one_process(ON_EIGHT[name], losses)


@pytest.mark.parametrize("dim", [0, -1])
def test_all_shards_on_one_device_train_in_one_process(dim: int) -> None:
    config = RunConfig.model_validate(make_data("sharding", dim, 1, "0000", "0000"))
    trainer = ShardedTrainer(Rank(config, Place()))
    losses = [trainer.train_step(step)[1] for step in range(1, STEPS + 1)]
    assert losses == pytest.approx(train_in_one_process(config, STEPS, CPU).losses, abs=1e-4)


def test_torchrun_trains_and_prints_avg_step_fps_and_how_it_is_computed(tmp_path: Path) -> None:
    output = run_engine(make_data("hybrid", 0, 2, "00", "01"), tmp_path)
    assert output.code == 0, output.text
    steps = output.events("step")
    assert [step["step"] for step in output.events("step", 1)] == [1, 2, 3, 4]
    slowest = {n: max(s["step_time_s"] for s in steps if s["step"] == n) for n in (2, 3, 4)}
    expected = sum(8 / seconds for seconds in slowest.values()) / 3
    assert [end["avg_step_fps"] for end in output.events("end")] == [pytest.approx(expected, rel=1e-4)] * 2
    assert f"avg_step_fps = {expected:.3g}"[:16] in output.text
    assert "mean of 8 / step time over 3 steps after 1 of warm-up" in output.text


BERT_LARGE_CASE = {
    "mode": "sharding",
    "sharding_size": 4,
    "sharding_dim": -1,
    "stage_cnt": 8,
    "accum_degree": 1,
    "device_mapping": mapping(*(str(stage) * 4 for stage in range(8)), kind="GPU"),
}


def test_eight_stages_of_four_shards_on_eight_gpus_are_a_configuration_of_eight_ranks() -> None:
    model = {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "sequence_length": 384}
    train = {"global_batch_size": 2, "micro_batch_size": 2}
    data = {"model": model, "train": train, "parallel": {"engine": "sharding"}, "sharding": BERT_LARGE_CASE}
    config, problems = check(json.loads(json.dumps(data)))
    assert problems == []
    assert config is not None
    assert config.world_size == 8
    assert config.resolved()["cluster"]["gpus_per_node"] == 8
    assert config.resolved()["sharding"] == BERT_LARGE_CASE
    assert config.sharding.grid == [[f"GPU:{stage}"] * 4 for stage in range(8)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_does_not_exist_is_named(tmp_path: Path) -> None:
    data = make_data("sharding", 0, 1, "00")
    data["sharding"]["device_mapping"] = mapping("00", kind="GPU")
    output = run_engine(data | {"cluster": {}}, tmp_path, processes=0)
    assert output.code == 2
    assert "sharding.device_mapping: device GPU:0 does not exist, this machine has 0 GPUs; use CPU:n" in output.text


def test_a_mapping_may_contain_gpus_and_cpus_and_devices_are_ordered() -> None:
    mixed = mapping("00") | {"stage_1": mapping("10", kind="GPU")["stage_0"]}
    data = make_data("sharding", 0, 1, "00", "00")
    config = RunConfig.model_validate(data | {"sharding": data["sharding"] | {"device_mapping": mixed}, "cluster": {}})
    assert config.sharding.devices == ["CPU:0", "GPU:0", "GPU:1"]
    assert config.sharding.is_mixed
    _, problems = check(config.resolved() | {"cluster": {"device": "cuda"}})
    assert [problem.field for problem in problems] == ["cluster.device"]


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"device_mapping": None}, "sharding.device_mapping"),
        ({"device_mapping": mapping("00")}, "sharding.device_mapping"),
        ({"device_mapping": mapping("00", "0")}, "sharding.device_mapping.stage_1"),
        ({"device_mapping": mapping("00", "00", kind="TPU")}, "sharding.device_mapping"),
        ({"stage_cnt": 4, "device_mapping": mapping("00", "00", "00", "00")}, "sharding.stage_cnt"),
        ({"accum_degree": 2}, "sharding.accum_degree"),
        ({"mode": "pipeline"}, "sharding.sharding_size"),
        ({"sharding_size": 3, "device_mapping": mapping("000", "000")}, "sharding.sharding_size"),
    ],
)
def test_invalid_mappings_are_refused_with_a_remedy(section: dict[str, Any], field: str) -> None:
    data = make_data("sharding", 0, 1, "00", "00")
    config, problems = check(data | {"sharding": data["sharding"] | section})
    assert config is None
    assert field in [problem.field for problem in problems]
    assert all("use " in problem.message for problem in problems)
