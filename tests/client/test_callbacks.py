"""The callbacks with the unmodified trainers that call them."""

from __future__ import annotations

import pytest

from parlab.lab.models import Run
from parlab.series import store
from tests.client.conftest import Script, ended

pytestmark = pytest.mark.django_db(transaction=True)

TRAINER = """
import sys, torch, parlab
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

data = [{"x": torch.tensor([float(n), 1.0]), "labels": torch.tensor([float(n)])} for n in range(32)]
args = TrainingArguments(
    sys.argv[1], per_device_train_batch_size=4, max_steps=6, logging_steps=2, report_to="none", use_cpu=True,
    save_strategy="no", disable_tqdm=True,
)
Trainer(Model(), args, train_dataset=data, callbacks=[parlab.HuggingFaceCallback(experiment="Trainer")]).train()
"""
MONITOR = """
import parlab

class Forwarded:
    enabled = True
    events = []
    def write_events(self, events):
        self.events += events

with parlab.init("Monitor") as run:
    monitor = parlab.DeepSpeedMonitor(run, Forwarded())
    for step in range(3):
        monitor.write_events([("Train/Samples/train_loss", 3.0 - step, step * 8), ("Train/Samples/lr", 0.1, step * 8)])
    assert len(monitor.events) == 6
"""


def test_the_trainer_of_hugging_face_makes_a_run(environ: dict[str, str], start: Script, tmp_path: object) -> None:
    ended(start(TRAINER, environ, f"{tmp_path}/out"))
    run = Run.objects.get(experiment__name="Trainer")
    assert run.state == "finished"
    assert run.resolved["train"]["micro_batch_size"] == 4
    assert store.read(run.current_attempt().pk, "loss", rank=0).steps.tolist() == [2, 4, 6]
    assert run.summary["loss"]["last"] > 0


def test_the_monitor_of_deepspeed_records_and_passes_on(environ: dict[str, str], start: Script) -> None:
    ended(start(MONITOR, environ))
    attempt = Run.objects.get().current_attempt()
    assert store.read(attempt.pk, "Train/Samples/train_loss", rank=0).values.tolist() == [3.0, 2.0, 1.0]
    assert store.read(attempt.pk, "Train/Samples/lr", rank=0).steps.tolist() == [0, 8, 16]
