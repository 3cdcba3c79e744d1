"""`parlab sync`: what no server accepts is listed, renamed or dropped, and holds up nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from parlab.client import journal
from parlab.client.command.commands import main
from parlab.client.spools import Stream
from parlab.lab.models import Run
from tests.client.conftest import ROOT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live_server: LiveServer, token: str) -> Path:
    for name, value in (("HOME", str(tmp_path)), ("URL", live_server.url), ("TOKEN", token)):
        monkeypatch.setenv(f"PARLAB_{name}", value)
    monkeypatch.delenv("PARLAB_RUN_ID", raising=False)
    return tmp_path


def spool(run_id: str, experiment: str = "Spools") -> str:
    stream = Stream.create({"run_id": run_id, "experiment": experiment, "kind": "rank", "rank": 0})
    with journal.Writer(stream.records) as writer:
        report = {"kind": "end", "state": "finished", "exit_code": 0, "at": 0}
        writer.append(journal.encode(journal.Kind.REPORT, json.dumps(report).encode()))
    stream.unlock()
    return stream.id


def test_a_spool_that_is_refused_again_does_not_fail_the_others(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = spool("not an id")
    assert main(["sync"]) == 1
    assert "--rename" in capsys.readouterr().err
    spool("good")
    assert main(["sync"]) == 0
    assert Run.objects.get().tracked.uuid == "good"
    capsys.readouterr()
    assert main(["sync", "--list", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["spool"], listed["run"]) == (bad, "not an id")
    assert "invalid" in listed["refused"]


def test_a_renamed_spool_is_sent_and_a_dropped_one_is_gone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = spool("not an id"), spool("bad/id")
    assert main(["sync", "--rename", first[:8], "--run-id", "better"]) == 0
    assert Run.objects.get().tracked.uuid == "better"
    assert main(["sync", "--drop", second[:8]]) == 0
    assert main(["sync"]) == 0
    assert "nothing to send" in capsys.readouterr().out
    assert main(["sync", "--drop", "missing"]) == 1


def test_a_wrong_token_fails_every_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool("good")
    monkeypatch.setenv("PARLAB_TOKEN", "parlab_wrong")
    assert (main(["sync"]), main(["sync"])) == (1, 1)


def test_a_reader_that_ends_early_causes_no_words(home: Path) -> None:
    source = "import sys; from parlab.client.command.commands import main; sys.exit(main(['completion', 'bash']))"
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
