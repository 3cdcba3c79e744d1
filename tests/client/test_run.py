"""Scripts that report with `parlab.init`, as processes of their own, to a running server."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from parlab.lab.models import Run, Stream
from parlab.series import log, store
from tests.client.conftest import Script, ended
from tests.patience import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

TRAINING = """
import parlab, sys
config = {"per_device_train_batch_size": 4, "model": {"num_layers": 12}, "world_size": 8}
with parlab.init("Warm-up length", config, name="first", tags={"cluster": "a"}) as run:
    for step in run.batches(range(100)):
        with run.phase("forward"):
            pass
        run.log({"train/loss": 3.0 - step / 100, "tokens_per_s": 1000.0 + step}, step=step)
    run.print("the end is near")
"""
# Logs for ever, and says after how many steps each `log` had returned.
ENDLESS = """
import parlab, sys
run = parlab.init("Endless", run_id=sys.argv[1] if len(sys.argv) > 1 else None)
step = 0
while True:
    run.log({"loss": float(step)}, step=step)
    step += 1
    print(step, flush=True)
"""
SYNC = "import sys; from parlab.client.command.commands import main; sys.exit(main(['sync']))"


def steps_of(run: Run, metric: str, rank: int = 0) -> list[int]:
    return [int(step) for step in store.read(run.current_attempt().pk, metric, rank=rank).steps]


def test_a_script_makes_a_run_with_settings_series_phases_and_log(environ: dict[str, str], start: Script) -> None:
    errors = ended(start(TRAINING, environ))
    run = Run.objects.get(experiment__name="Warm-up length")
    assert (run.label, run.state, run.origin) == ("first", "finished", "reported")
    assert f"/experiments/{run.experiment.slug}/runs/{run.number}/" in errors
    assert run.resolved["train"] == {"micro_batch_size": 4, "global_batch_size": 32}
    assert run.resolved["model"]["num_layers"] == 12
    assert steps_of(run, "train/loss") == list(range(100))
    assert steps_of(run, "timer/forward-compute") == list(range(100))
    assert steps_of(run, "timer/data-loading") == list(range(100))
    assert run.summary["loss"] == {"first": 3.0, "last": 2.01}
    assert log.log_tail(run.current_attempt().pk) == ["the end is near"]
    assert run.tracked.tags.get(key="cluster").value == "a"
    assert run.tracked.metrics.get(key="train/loss").step == 99


def test_nothing_stays_on_disk_once_the_server_has_it(
    environ: dict[str, str], start: Script, client_home: Path
) -> None:
    ended(start(TRAINING, environ))
    assert list((client_home / "spool").iterdir()) == []


def test_without_a_network_nothing_is_lost_and_sync_sends_it(
    offline: dict[str, str], environ: dict[str, str], start: Script
) -> None:
    errors = ended(start(TRAINING, offline))
    assert "parlab sync" in errors
    assert not Run.objects.exists()
    # The data was recorded for another address; `sync` sends it to the one that is set now.
    ended(start(SYNC, environ))
    run = Run.objects.get()
    assert (run.state, steps_of(run, "train/loss")) == ("finished", list(range(100)))
    ended(start(SYNC, environ))
    assert steps_of(run, "train/loss") == list(range(100))


@pytest.mark.parametrize("is_offline", [False, True])
def test_what_log_has_returned_from_survives_kill_9(
    environ: dict[str, str], offline: dict[str, str], start: Script, is_offline: bool
) -> None:
    process = start(ENDLESS, offline if is_offline else environ)
    assert process.stdout is not None
    for _ in range(2000):
        process.stdout.readline()
    process.kill()
    rest = process.stdout.read().splitlines()
    logged = int(rest[-1]) if rest and rest[-1] else 2000
    process.wait()
    ended(start(SYNC, environ))
    run = Run.objects.get()
    steps = steps_of(run, "loss")
    assert steps == list(range(len(steps)))
    assert logged <= len(steps) <= logged + 1
    assert run.state == "failed"
    assert "killed" in run.reason


def test_a_restart_with_the_same_run_continues_it(environ: dict[str, str], start: Script) -> None:
    first = start(ENDLESS, environ, "resumed")
    assert first.stdout is not None
    for _ in range(100):
        first.stdout.readline()
    first.kill()
    first.wait()
    second = start(ENDLESS, environ, "resumed")
    wait_for(lambda: Stream.objects.filter(state="running", committed__gt=0).count() == 1, "the second reports")
    assert second.poll() is None
    wait_for(lambda: Run.objects.get().state == "running", "the run is running again")
    run = Run.objects.get()
    assert steps_of(run, "loss")[0] == 0
    assert steps_of(run, "loss").count(0) == 2  # both processes logged it, in this order


def test_ranks_of_one_launch_fill_one_run(environ: dict[str, str], start: Script) -> None:
    source = """
import os, subprocess, sys
script = '''
import parlab
run = parlab.init("Ranks", {"seed": 1})
for step in range(20):
    run.log({"loss": run.rank + step / 10}, step=step)
'''
size = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
ranks = [
    subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **size, "RANK": str(r), "LOCAL_RANK": str(r)})
    for r in range(3)
]
sys.exit(sum(rank.wait() for rank in ranks))
"""
    ended(start(source, environ))
    run = Run.objects.get()
    assert (run.state, run.tracked.streams.count()) == ("finished", 3)
    for rank in range(3):
        assert steps_of(run, "loss", rank) == list(range(20))


def test_an_exception_fails_the_run_with_its_traceback(environ: dict[str, str], start: Script) -> None:
    process = start("import parlab\nrun = parlab.init('Bad')\nrun.log({'loss': 1})\n1 / 0", environ)
    process.communicate(timeout=120)
    assert process.returncode == 1
    run = Run.objects.get()
    assert (run.state, run.reason) == ("failed", "ZeroDivisionError: division by zero")
    assert "1 / 0" in run.current_attempt().traceback or "line 4" in run.current_attempt().traceback


@pytest.mark.slow
def test_bad_values_are_skipped_with_a_warning_and_the_others_are_kept(environ: dict[str, str], start: Script) -> None:
    source = """
import parlab
run = parlab.init("Bad input")
nan, inf = float("nan"), float("inf")
for step, values in enumerate([
    {"loss": nan, "a": 1}, {"loss": inf, "a": 2}, {"loss": "text", "a": 3}, {"x" * 10_000: 1, "a": 4},
    {"loss": 0.5, "a": 5}, {"loss": [1], "a": 6}, {"loss": None, "a": 7}, {"a\\nb": 1, "a": 8}, {5: 1, "a": 9},
]):
    run.log(values, step=step)
run.log({"a": 10}, step=3)
run.log({"a": 11}, step="four")
run.log({"a": 12}, step=10**12)
run.log({"a": 13}, step=9.0)
run.log({f"metric {n}": n for n in range(100_010)}, step=10)
"""
    errors = ended(start(source, environ))
    run = Run.objects.get()
    values = store.read(run.current_attempt().pk, "loss", rank=0).values.tolist()
    assert [str(value) for value in values] == ["nan", "inf", "0.5"]
    series = store.read(run.current_attempt().pk, "a", rank=0)
    assert series.values.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13]
    assert series.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 9]
    assert len(store.metrics(run.current_attempt().pk)) == 100_000
    for part in ("'text' is not a number", "10000 characters", "step 'four'", "at most 100000 metrics"):
        assert part in errors
    assert not math.isnan(run.tracked.metrics.get(key="a").value or 0)


def test_a_wrong_token_does_not_stop_the_script(environ: dict[str, str], start: Script, client_home: Path) -> None:
    errors = ended(start(TRAINING, {**environ, "PARLAB_TOKEN": "parlab_wrong"}))
    assert "unknown, expired or revoked token; create a token on your account page" in errors
    assert not Run.objects.exists()
    assert len(list((client_home / "spool").iterdir())) == 1


def test_forked_workers_of_a_script_do_not_disturb_its_run(environ: dict[str, str], start: Script) -> None:
    source = """
import os, parlab
run = parlab.init("Forks")
run.log({"loss": 1.0}, step=0)
child = os.fork()
if not child:
    run.log({"loss": 99.0}, step=1)
    os._exit(0)
os.waitpid(child, 0)
run.log({"loss": 2.0}, step=1)
"""
    ended(start(source, environ))
    run = Run.objects.get()
    assert store.read(run.current_attempt().pk, "loss", rank=0).values.tolist() == [1.0, 2.0]


def test_a_clock_that_is_years_off_moves_only_the_time_stamps_of_points(environ: dict[str, str], start: Script) -> None:
    source = "import time\nnow = time.time\ntime.time = lambda: now() - 3e8\n" + TRAINING
    ended(start(source, environ))
    run = Run.objects.get()
    assert (run.state, steps_of(run, "train/loss")) == ("finished", list(range(100)))
    assert run.started_at is not None
    assert abs((run.started_at - run.queued_at).total_seconds()) < 120
    assert Stream.objects.get().clock_offset_s == pytest.approx(-3e8, abs=60)


def test_settings_of_any_kind_become_flat_texts() -> None:
    from parlab.client.environment import flat

    assert flat({"a": {"b": [1, 2], "c": {}}, 3: None}) == {"a.b": "[1, 2]", "a.c": "{}", "3": "None"}
    assert flat(json.JSONDecoder)  # anything with attributes
    assert flat(None) == {}


def test_two_scripts_with_one_run_id_wait_for_each_other_and_lose_nothing(
    environ: dict[str, str], start: Script, client_home: Path
) -> None:
    source = """
import parlab, sys
run = parlab.init("Twice", run_id="same", telemetry=False)
run.log({"loss": float(sys.argv[1])}, step=int(sys.argv[1]))
if sys.argv[1] == "0":
    sys.stdin.readline()
    run.finish()
else:
    assert not run.finish(timeout_s=float(sys.argv[2]))
"""
    first = start(source, environ, "0")
    wait_for(lambda: Stream.objects.filter(committed__gt=0).exists(), "the first script reports")
    errors = ended(start(source, environ, "1", "1"))
    assert "not everything is on the server" in errors
    assert steps_of(Run.objects.get(), "loss") == [0]
    assert first.stdin is not None
    first.stdin.write("end\n")
    ended(first)
    ended(start(SYNC, environ))
    run = Run.objects.get()
    assert (run.state, steps_of(run, "loss"), run.tracked.streams.count()) == ("finished", [0, 1], 2)
    assert list((client_home / "spool").iterdir()) == []


def test_text_beyond_the_limit_of_a_request_arrives_in_several(environ: dict[str, str], start: Script) -> None:
    source = """
import parlab
with parlab.init("Long text", telemetry=False) as run:
    run.print("y" * (5 << 20))
    run.log({"loss": 1.0}, step=1)
"""
    ended(start(source, environ))
    run = Run.objects.get()
    assert b"".join(log.read_log(run.current_attempt().pk)).count(b"y") == 5 << 20
    assert (run.state, steps_of(run, "loss")) == ("finished", [1])
