"""The callbacks that save and stop, with the unmodified trainers and real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.client.stopping import CHECKPOINTED
from parlab.embedded import free_port
from tests.client.conftest import ROOT
from tests.client.test_trainers import HUGGING_FACE, LIGHTNING
from tests.patience import TRAINING_S

pytestmark = pytest.mark.slow

SHOW = """
class Show({base}):
    def {hook}(self, *arguments, **named):
        print("step", flush=True)
"""
HUGGING_FACE_STOP = (
    "import parlab, torch, transformers\n"
    + HUGGING_FACE.replace("max_steps=6", "max_steps=100000")
    + SHOW.format(base="transformers.TrainerCallback", hook="on_step_end")
    + """
callbacks = [Show(), parlab.HuggingFaceStop()]
transformers.Trainer(model, arguments, train_dataset=dataset, callbacks=callbacks).train()
print("went on after the training")
"""
)
LIGHTNING_STOP = (
    "import lightning, lightning.pytorch, parlab, torch\n"
    + LIGHTNING
    + SHOW.format(base="lightning.pytorch.Callback", hook="on_train_batch_end")
    + """
lightning.pytorch.Trainer(max_epochs=100000, callbacks=[Show(), parlab.LightningStop()]).fit(model, batches)
print("went on after the training")
"""
)


def start(script: str, directory: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PARLAB_WARN_SIGNAL": "SIGUSR2",
        "PARLAB_CHECKPOINT_DIR": str(directory / "checkpoints"),
        **variables,
    }
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=directory, env=environment, text=True, stdout=subprocess.PIPE
    )


def wait_for_steps(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    steps = 0
    for line in process.stdout:
        steps += line == "step\n"
        if steps == count:
            return
    raise AssertionError(f"ended after {steps} steps")


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_trainer_of_hugging_face_saves_and_exits(number: int, tmp_path: Path) -> None:
    process = start(HUGGING_FACE_STOP, tmp_path)
    wait_for_steps(process, 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=TRAINING_S)
    assert process.returncode == CHECKPOINTED
    assert "went on" not in output
    (saved,) = (tmp_path / "out").glob("checkpoint-*")
    assert (saved / "trainer_state.json").exists()


def test_all_ranks_of_a_trainer_stop_when_one_is_warned(tmp_path: Path) -> None:
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [start(HUGGING_FACE_STOP, tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in (0, 1)]
    wait_for_steps(ranks[1], 3)
    ranks[1].send_signal(signal.SIGUSR2)
    for rank in ranks:
        rank.communicate(timeout=TRAINING_S)
    assert [rank.returncode for rank in ranks] == [CHECKPOINTED] * 2


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_trainer_of_lightning_saves_and_exits(number: int, tmp_path: Path) -> None:
    process = start(LIGHTNING_STOP, tmp_path)
    wait_for_steps(process, 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=TRAINING_S)
    assert process.returncode == CHECKPOINTED
    assert "went on" not in output
    assert list((tmp_path / "checkpoints").glob("step-*.ckpt"))
