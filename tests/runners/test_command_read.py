"""A command of the team's own through the real daemon and its engine: the server reads what it prints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.cache import cache

from parlab.ingest.batches.services import batch_apply
from parlab.lab.models import Attempt, Node
from parlab.series import store
from runners.config import RunConfig
from tests.conftest import place
from tests.runners.conftest import NODE, NodeMachine, Server

LOG = Path(__file__).parent.parent / "formats" / "megatron" / "core_timers.log"

pytestmark = pytest.mark.django_db


@pytest.mark.slow
def test_a_command_that_prints_a_megatron_log_has_its_figures_on_the_server(
    machine: NodeMachine, server: Server, make_attempt: Callable[..., Attempt], tmp_path: Path
) -> None:
    program = tmp_path / "train.sh"
    program.write_text(f"#!/bin/sh\nhead -5 {LOG}\nsleep 1.5\ntail -n +6 {LOG}\n")
    program.chmod(0o755)
    allowed = tmp_path / "allowed.json"
    allowed.write_text(json.dumps([[str(program)]]))
    config = RunConfig.model_validate(
        {
            "parallel": {"engine": "command"},
            "command": {"argv": [str(program)]},
            "launcher": {"kind": "plain"},
            "cluster": {"device": "cpu"},
        }
    ).resolved()
    attempt = make_attempt(state="dispatched")
    attempt.run.resolved = config
    attempt.run.save()
    place(attempt, Node.objects.create(name=NODE))
    machine.start_daemon(TEST_SCRIPTS="", PARLAB_ALLOWED_COMMANDS=str(allowed))
    server.start(attempt.run_id, config=config)
    assert server.end_of(attempt.run_id).state == "finished"
    for batch in server.batches:
        cache.clear()
        batch_apply(batch=batch)

    attempt.run.refresh_from_db()
    summary = attempt.run.summary
    assert attempt.run.state == "finished"
    assert summary["read_by"] == "megatron"
    assert summary["step_time_s"]["median"] == pytest.approx(1.005)
    assert attempt.run.samples_per_s == pytest.approx(16 / 1.005)
    loss = store.read(attempt.pk, "loss", rank=0)
    assert (loss.steps.tolist(), loss.values.tolist()) == ([1, 2, 3], [9.0, 8.5, 8.2])
    # By the node's clock, though the log's own stamps are from another day.
    assert loss.times[0] <= loss.times[2]
    assert abs(loss.times[2] - time.time()) < 3600
    assert summary["timers_s"]["forward-compute"]["by_rank"]
