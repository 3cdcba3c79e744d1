"""The callbacks without trainers; test_trainers.py calls them from the real ones."""

from __future__ import annotations

import pytest

from parlab.lab.models import Run
from parlab.series import store
from tests.client.conftest import Script, ended

pytestmark = pytest.mark.django_db(transaction=True)

MONITOR = """
import parlab

class Forwarded:
    enabled = True
    events = []
    def write_events(self, events):
        self.events += events

with parlab.init("Monitor") as run:
    monitor = parlab.DeepSpeedMonitor(run, Forwarded(), batch_size=8)
    for step in range(3):
        monitor.write_events([("Train/Samples/train_loss", 3.0 - step, step * 8), ("Train/Samples/lr", 0.1, step * 8)])
    assert len(monitor.events) == 6
    try:
        parlab.DeepSpeedMonitor(run, batch_size=0)
    except ValueError as error:
        assert "engine.train_batch_size()" in str(error)
"""


def test_the_monitor_of_deepspeed_records_and_passes_on(environ: dict[str, str], start: Script) -> None:
    ended(start(MONITOR, environ))
    attempt = Run.objects.get().current_attempt()
    assert store.read(attempt.pk, "Train/Samples/train_loss", rank=0).values.tolist() == [3.0, 2.0, 1.0]
    assert store.read(attempt.pk, "Train/Samples/lr", rank=0).steps.tolist() == [0, 1, 2]
