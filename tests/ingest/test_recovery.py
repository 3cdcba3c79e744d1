"""Recovery of a run: interruptions between attempts and within one, from the times that parlab has."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.ingest.files.imports import upload_import
from parlab.ingest.summaries.recovery import run_recovery
from parlab.lab.models import Attempt, Node, Run
from parlab.series import log, store
from parlab.series.columns import Columns
from tests.conftest import place
from tests.formats.test_elastic import TORCHFT

pytestmark = pytest.mark.django_db
START = timezone.now().replace(microsecond=0) - timedelta(hours=3)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def unix(seconds: float) -> float:
    return at(seconds).timestamp()


def steps(attempt: Attempt, first: int, ends: list[float], metric: str = "step_time_s", value: float = 10.0) -> None:
    times = np.array([unix(end) for end in ends])
    numbers = np.arange(first, first + len(ends))
    store.append(attempt.pk, {(metric, 0): Columns(numbers, times, np.full(len(ends), value))})


@pytest.fixture
def interrupted(make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]) -> Run:
    """Ten steps, a node that vanishes, and a second attempt that loads step 7 and goes on."""
    first = make_attempt(state="lost")
    run, node = first.run, make_node("gpu1")
    Attempt.objects.filter(pk=first.pk).update(started_at=at(0), ended_at=at(145), reason="node gpu1 has sent nothing")
    place(first, node, noticed_at=at(140), ended_at=at(145))
    steps(first, 1, [20.0 + 10 * step for step in range(10)])
    second = Attempt.objects.create(run=run, number=2, state="running", started_at=at(160))
    place(second, node, assigned_at=at(150), started_at=at(160))
    start = f'{{"parlab":1,"t":{unix(175):.3f},"rank":0,"event":"start","engine":"pipeline"}}\n'.encode()
    sample = f'{{"parlab":1,"t":{unix(161):.3f},"rank":-1,"event":"telemetry","cpu_pct":1}}\n'.encode()
    output = sample + b"importing torch\n" + start
    log.append_log(
        second.pk, output, stamps=[(0, unix(161)), (len(sample), unix(170)), (len(output) - len(start), unix(175))]
    )
    steps(second, 8, [230.0, 240.0, 250.0, 260.0])
    steps(second, 8, [190.0], "checkpoint/load_s", 12.0)
    Run.objects.filter(pk=run.pk).update(attempt_number=2, state="running", started_at=at(160))
    run.refresh_from_db()
    return run


def test_an_interruption_between_attempts_is_split_into_all_its_parts(interrupted: Run) -> None:
    (found,) = run_recovery(interrupted).interruptions
    assert found.name == "Attempt 1 to 2"
    assert found.reason == "node gpu1 has sent nothing"
    assert {part.key: round(part.seconds, 2) for part in found.parts} == {
        "detect": 30.0, "drain": 5.0, "queue": 5.0, "start": 20.0, "rendezvous": 5.0, "load": 15.0,
        "first_step": 40.0, "repeated": 20.0,
    }  # fmt: skip
    assert found.repeated_steps == 3
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds, rel=0.01)
    assert found.seconds == pytest.approx(140.0)


def test_goodput_by_hour_leaves_out_steps_that_were_made_again(interrupted: Run) -> None:
    (hour,) = run_recovery(interrupted).hours
    assert hour.seconds == pytest.approx(260.0)
    assert hour.progress_s == pytest.approx(70.0 + 40.0), "steps 1 to 7, and 8 to 11"


def test_a_second_look_costs_no_series(interrupted: Run, django_assert_num_queries: Any) -> None:
    first = run_recovery(interrupted)
    with django_assert_num_queries(3):  # attempts, members, nodes
        assert run_recovery(interrupted) == first


def test_what_no_log_states_is_contained_in_the_part_that_follows(
    make_attempt: Callable[..., Attempt], make_node: Callable[..., Node]
) -> None:
    first = make_attempt(state="lost")
    Attempt.objects.filter(pk=first.pk).update(started_at=at(0), ended_at=at(50))
    second = Attempt.objects.create(run=first.run, number=2, state="running", started_at=at(60))
    steps(first, 1, [20.0, 30.0])
    steps(second, 3, [90.0])
    (found,) = run_recovery(first.run).interruptions
    assert [(part.title, round(part.seconds)) for part in found.parts if part.seconds] == [
        ("Detect", 20),
        ("Queue, start", 10),
        ("Rendezvous, load, first step", 30),
    ]


def command(attempt: Attempt) -> Run:
    run = attempt.run
    resolved = {**run.resolved, "parallel": {**run.resolved["parallel"], "engine": "command"}}
    Run.objects.filter(pk=run.pk).update(resolved=resolved)
    run.refresh_from_db()
    return run


def test_a_restart_of_torchft_within_an_attempt_is_read_from_its_lines(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    Attempt.objects.filter(pk=attempt.pk).update(started_at=at(0), last_step=10)
    run = command(attempt)
    log.append_log(attempt.pk, TORCHFT.lstrip().encode())
    (found,) = run_recovery(run).interruptions
    assert found.name == "Restart 1 (torchft)"
    assert {part.title: round(part.seconds, 3) for part in found.parts} == {
        "Detect": 0.0, "Drain, start": 948.245, "Rendezvous": 0.683, "Load": 9.072, "First step": 10.0,
    }  # fmt: skip


TITAN = (
    "[titan] 2026-06-07 {time},000 - root - INFO - step: {step:2d}  loss: 7.5  grad_norm:  1.5  memory:  0.91GiB(0.95%)"
)
TITAN += "  tps: 3,632  tflops: 0.26  mfu: 0.03%\n"
MANAGER = "[titan] 2026-06-07 {time},000 - torchft.manager - {level} - [ft_1:{replica}/0 - step {step}] {text}\n"


def replica_log() -> bytes:
    """A replica of torchft that dies after step 10 and trains again 16 minutes later."""
    lines = [MANAGER.format(time="16:30:00", level="INFO", replica="f7", step=0, text="reconfiguring for quorum_id=1")]
    lines += [TITAN.format(time=f"16:31:{step:02d}", step=step) for step in range(1, 11)]
    events = [
        ("16:34:11", "ERROR", "f7", 10, "got exception in future -- skipping remaining: aborted"),
        ("16:49:59", "INFO", "a9", 0, "reconfiguring for quorum_id=12 store_prefixed_addr='h:1/torchft/12/0'"),
        ("16:50:00", "INFO", "a9", 0, "healing required, fetching checkpoint metadata from x max_step=10"),
        ("16:50:09", "INFO", "a9", 10, "Loaded state dict."),
        ("16:50:21", "INFO", "a9", 11, "should_commit=True enough_replicas=True, errored=None"),
    ]
    names = ("time", "level", "replica", "step", "text")
    lines += [MANAGER.format(**dict(zip(names, event, strict=True))) for event in events]
    lines += [TITAN.format(time=f"16:50:{11 + step}", step=step) for step in range(11, 15)]
    return "".join(lines).encode()


def test_an_imported_log_explains_the_sixteen_minutes_of_a_replica(user: User) -> None:
    upload_import(experiment=None, name="replica.log", stream=io.BytesIO(replica_log()), user=user)
    (found,) = run_recovery(Run.objects.get()).interruptions
    assert found.name == "Restart 1 (torchft)"
    assert {part.title: round(part.seconds) for part in found.parts} == {
        "Detect": 181, "Drain, start": 948, "Rendezvous": 1, "Load": 9, "First step": 13, "Repeated steps": 0,
    }  # fmt: skip
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.seconds, rel=0.01)
    assert "local disk" in found.advice


def test_steps_that_begin_again_are_a_restart(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    Attempt.objects.filter(pk=attempt.pk).update(started_at=at(0), last_step=6)
    steps(attempt, 1, [10.0, 20.0, 30.0, 40.0])
    steps(attempt, 3, [100.0, 110.0, 120.0])
    (found,) = run_recovery(command(attempt)).interruptions
    assert (found.name, round(found.seconds), found.repeated_steps) == ("Restart 1", 70, 2)
    assert {part.title: round(part.seconds) for part in found.parts} == {
        "Detect, drain, start, rendezvous, load, first step": 60, "Repeated steps": 10,
    }  # fmt: skip


def test_ranks_that_a_script_reports_are_a_restart_with_their_number(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt()
    Attempt.objects.filter(pk=attempt.pk).update(started_at=at(0), last_step=6)
    steps(attempt, 1, [10.0, 20.0, 30.0, 40.0])
    steps(attempt, 5, [100.0, 110.0, 120.0])
    sizes = Columns(np.array([0, 4]), np.array([unix(5.0), unix(75.0)]), np.array([8.0, 6.0]))
    store.append(attempt.pk, {("elastic_ranks", 0): sizes})
    failure = "E1127 08:10:00.000000 7 api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 9) of binary: python\n"
    log.append_log(attempt.pk, failure.encode(), stamps=[(0, unix(45.0))])
    (found,) = run_recovery(command(attempt)).interruptions
    assert (found.ranks, found.repeated_steps) == ((8, 6), 0)
    assert {part.title: round(part.seconds) for part in found.parts if part.seconds} == {
        "Detect": 5, "Drain, start": 30, "Rendezvous, load, first step": 25,
    }  # fmt: skip
    assert "exitcode: -9" in found.reason


def test_the_lines_of_nvrx_have_the_number_of_ranks_that_the_client_reports(
    make_attempt: Callable[..., Attempt],
) -> None:
    attempt = make_attempt()
    Attempt.objects.filter(pk=attempt.pk).update(started_at=at(0), last_step=7)
    steps(attempt, 1, [10.0, 20.0, 30.0, 40.0])
    steps(attempt, 4, [80.0, 90.0, 100.0])
    sizes = Columns(np.array([0, 4]), np.array([unix(1.0), unix(62.0)]), np.array([8.0, 7.0]))
    store.append(attempt.pk, {("elastic_ranks", 0): sizes})
    lines = ["rank=1 fn_ex: RuntimeError('rank 1 fails')\n", "rank=1 restart_ex: HealthCheckPassed()\n"]
    stamps = [(0, unix(50.0)), (len(lines[0]), unix(60.0))]
    log.append_log(attempt.pk, "".join(lines).encode(), stamps=stamps)
    (found,) = run_recovery(command(attempt)).interruptions
    assert (found.name, found.ranks, found.repeated_steps) == ("Restart 1 (NVRx)", (8, 7), 1)


def test_the_page_shows_bars_parts_and_what_would_shorten_them(page: Client, interrupted: Run) -> None:
    details = page.get(f"{interrupted.get_absolute_url()}details/").content.decode()
    assert f'hx-get="{interrupted.get_absolute_url()}recovery/"' in details
    shown = page.get(f"{interrupted.get_absolute_url()}recovery/").content.decode()
    assert "1 interruption, 2" in shown
    for key in ("detect", "drain", "queue", "start", "rendezvous", "load", "first_step", "repeated"):
        assert f'class="rp-{key}"' in shown
    assert "3 steps made again" in shown
    assert "write checkpoints more often" in shown


def test_the_api_returns_the_interruptions_with_the_goodput(page: Client, interrupted: Run) -> None:
    address = f"/api/experiments/{interrupted.experiment.slug}/runs/{interrupted.number}/goodput/"
    (found,) = page.get(address).json()["interruptions"]
    assert (found["name"], found["repeated_steps"], found["ranks"]) == ("Attempt 1 to 2", 3, None)
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["seconds"], rel=0.01)


def test_the_cluster_adds_up_the_interruptions_of_all_runs(page: Client, interrupted: Run) -> None:
    shown = page.get("/nodes/").content.decode()
    assert "1 interruption of 1 run" in shown
    assert "First step" in shown


def test_a_run_without_interruptions_has_no_section(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt().run
    assert page.get(f"{run.get_absolute_url()}recovery/").content.decode().strip() == ""
    assert "recovery/" not in page.get(f"{run.get_absolute_url()}details/").content.decode()
