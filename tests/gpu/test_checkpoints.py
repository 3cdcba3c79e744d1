"""Checkpoints on one GPU: a run that is warned or killed continues where it was, with the losses of one training."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from parlab.client.stopping import CHECKPOINTED
from runners.wire.protocol import EVENT_PREFIX
from tests.engines.started import ROOT
from tests.gpu.devices import GPU
from tests.patience import TRAINING_S

MODEL = {"num_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "sequence_length": 64, "vocab_size": 512}
TRAIN = {"global_batch_size": 8, "micro_batch_size": 2, "iterations": 400, "learning_rate": 1e-3}
ENGINES: dict[str, dict[str, Any]] = {
    "pipeline": {},
    "megatron": {"train": {"optimizer": "adamw", "gradient_clipping": 1.0}},
    "megatron in 16 bits": {"train": {"precision": "fp16"}},
    "zero": {"parallel": {"zero_stage": 1}},
    "hf": {"model": {"implementation": "huggingface"}},
}


def make_data(name: str) -> dict[str, Any]:
    """Return a run of one GPU that saves every 50 steps."""
    sections = ENGINES[name]
    return {
        "model": MODEL | sections.get("model", {}),
        "train": TRAIN | sections.get("train", {}),
        "parallel": {"engine": name.split(maxsplit=1)[0]} | sections.get("parallel", {}),
        "cluster": {"device": "cuda"},
        "checkpoint": {"every_steps": 50},
    }


class Attempt:
    """One attempt of a run: its engine as a process, which writes into a file."""

    def __init__(self, data: dict[str, Any], directory: Path, number: int) -> None:
        path, self.output = directory / f"config-{number}.json", directory / f"output-{number}.txt"
        path.write_text(json.dumps(data))
        variables = {
            "OMP_NUM_THREADS": "4",
            "PARLAB_CHECKPOINT_DIR": str(directory / "run-1"),
            "PARLAB_ATTEMPT": str(number),
            "PARLAB_WARN_SIGNAL": "SIGUSR2",
        }
        module = f"runners.engines.{data['parallel']['engine']}"
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--config", str(path)],
                cwd=ROOT,
                env=os.environ | variables,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events with a name."""
        lines = [line for line in self.output.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        events = [json.loads(line) for line in lines if line.startswith(EVENT_PREFIX)]
        return [event for event in events if event["event"] == name]

    def losses(self) -> dict[int, float]:
        """Return step -> loss."""
        return {event["step"]: event["loss"] for event in self.events("step") if "loss" in event}

    def saves(self) -> list[dict[str, Any]]:
        """Return the checkpoints that were written."""
        return [event for event in self.events("checkpoint") if event["kind"] == "save"]

    def wait_for_step(self, step: int) -> None:
        """Wait until a checkpoint and the step are there."""
        deadline = time.monotonic() + TRAINING_S
        while max(self.losses(), default=0) < step or not self.saves():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        try:
            return self.process.wait(TRAINING_S)
        finally:
            self.process.kill()


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("name", ENGINES)
def test_a_warned_and_then_killed_run_has_the_losses_of_one_training(device: str, name: str, tmp_path: Path) -> None:
    assert device == "cuda"
    if name == "zero" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed here")
    data = make_data(name)
    whole = Attempt(data | {"checkpoint": {}}, tmp_path, 0)
    assert whole.ended() == 0, whole.output.read_text()
    first = Attempt(data, tmp_path, 1)
    first.wait_for_step(60)
    first.process.send_signal(signal.SIGUSR2)
    assert first.ended() == CHECKPOINTED, first.output.read_text()
    last = max(first.losses())
    assert first.saves()[-1]["step"] == last
    second = Attempt(data, tmp_path, 2)
    second.wait_for_step(last + 60)
    second.process.kill()
    second.ended()
    third = Attempt(data, tmp_path, 3)
    assert third.ended() == 0, third.output.read_text()
    assert second.events("checkpoint")[0]["step"] == last
    assert third.events("checkpoint")[0]["step"] % 50 == 0
    losses = first.losses() | second.losses() | third.losses()
    # Sums of a GPU depend on the order of its threads; a wrong state is off by far more.
    assert losses == pytest.approx(whole.losses(), abs=2e-3 if "16 bits" in name else 1e-4)
