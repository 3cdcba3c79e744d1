"""Engine hf: the same batches as the other engines in every layout, the Trainer's own log lines, and events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parlab.formats.logs import huggingface
from runners.config import RunConfig, check
from runners.engines.training.data import make_batch
from runners.engines.training.networks import hugging_face_model
from tests.engines.ranks import train_in_one_process
from tests.engines.started import Output, run_engine

pytestmark = pytest.mark.slow

MODEL = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}
DATA: dict[str, Any] = {
    "model": MODEL | {"implementation": "huggingface"},
    "train": {"global_batch_size": 8, "micro_batch_size": 2, "learning_rate": 1e-3, "iterations": 4},
    "parallel": {"engine": "hf", "data_parallel_size": 2},
    "cluster": {"device": "cpu"},
}


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Output:
    return run_engine(DATA, tmp_path_factory.mktemp("hf"))


def test_losses_equal_those_of_one_process_on_the_full_batch(output: Output) -> None:
    assert output.code == 0, output.text
    config = RunConfig.model_validate(DATA)
    network = hugging_face_model(config)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.train.learning_rate)
    expected = []
    for step in range(1, 5):
        tokens = make_batch(config, step).tokens
        optimizer.zero_grad()
        loss = network(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert output.losses() == pytest.approx(expected, abs=1e-4)


def test_a_bert_trains_both_heads_as_one_process_does(tmp_path: Path) -> None:
    model = DATA["model"] | {"kind": "bert", "attention_mask": "bidirectional"}
    config = RunConfig.model_validate(DATA | {"model": model, "train": DATA["train"] | {"iterations": 5}})
    output = run_engine(config.resolved(), tmp_path)
    assert output.code == 0, output.text
    assert output.losses() == pytest.approx(train_in_one_process(config, 5, torch.device("cpu")).losses, abs=1e-4)


def test_every_rank_prints_its_steps_and_the_reader_reads_the_trainers_own_lines(output: Output) -> None:
    for rank in (0, 1):
        steps = output.events("step", rank)
        assert [step["step"] for step in steps] == [1, 2, 3, 4]
        assert all(step["step_time_s"] > 0 and step["memory_peak_bytes"] > 50e6 for step in steps)
        assert [event["iterations"] for event in output.events("end", rank)] == [4]
    own = [line for line in output.text.splitlines() if not line.startswith('{"parlab"')]
    assert len([record for record in huggingface.read(own) if record.kind == "step"]) >= 4


def test_one_process_trains_alone_with_recomputation(output: Output, tmp_path: Path) -> None:
    alone = DATA | {"parallel": {"engine": "hf"}, "train": DATA["train"] | {"recompute": "full"}}
    run = run_engine(alone, tmp_path, processes=0)
    assert run.code == 0, run.text
    assert run.losses() == pytest.approx(output.losses(), abs=2e-4)


def test_models_that_are_not_hugging_faces_are_refused() -> None:
    config, problems = check(DATA | {"model": MODEL})
    assert config is None
    assert [problem.field for problem in problems] == ["model.implementation"]
