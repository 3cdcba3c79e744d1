"""A limit on memory ends a training as out of memory, with the sizes, and not the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.supervisor.processes import die_with
from runners.supervisor.verdict import Evidence
from runners.wire.protocol import OOM_EXIT_CODE, RunState
from tests.patience import TRAINING_S

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_an_engine_beyond_its_limit_reports_sizes_and_phase(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    model = {"num_layers": 4, "hidden_size": 2048, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}
    path.write_text(json.dumps({"model": model, "cluster": {"device": "cpu"}}))
    ended = subprocess.run(
        [sys.executable, "-m", "runners.engines.pipeline", "--config", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TRAINING_S,
        preexec_fn=die_with(os.getpid(), 600),
    )
    assert ended.returncode == OOM_EXIT_CODE, ended.stdout
    (event,) = (json.loads(line) for line in ended.stdout.splitlines() if b'"event":"oom"' in line)
    assert event["phase"] == "model"
    assert event["total_bytes"] == 600 << 20
    assert 0 < event["requested_bytes"] < 600 << 20
    assert 0 <= event["free_bytes"] < 600 << 20
    evidence = Evidence()
    evidence.see(ended.stdout)
    assert evidence.verdict(ended.returncode).state is RunState.OOM
