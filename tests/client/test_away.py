"""A server that is away for an hour: as many tries as an hour holds, at once, in every way of being away."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from parlab.client.shipping import RETRY_MAX_S, RETRY_S
from parlab.embedded import free_port
from parlab.lab.models import Run
from tests.client.conftest import Script
from tests.client.gate import Gate, Mode, gate
from tests.client.served import served
from tests.client.test_run import steps_of
from tests.patience import wait_for

pauses = accumulate(min(RETRY_S * 2**failures, RETRY_MAX_S) for failures in range(1_000))
TRIES_OF_AN_HOUR = next(number for number, seconds in enumerate(pauses, 1) if seconds > 3_600)
# Pauses between tries are 3,000 times shorter, and a server is waited for a fifth of a second.
TRAINING = """
import sys
import parlab
from parlab.client import http, shipping
shipping.RETRY_S, shipping.RETRY_MAX_S = shipping.RETRY_S / 3000, shipping.RETRY_MAX_S / 3000
http.Connection.__init__.__kwdefaults__["timeout_s"] = float(sys.argv[1])
run = parlab.init("Away", telemetry=False)
step = 0
for order in sys.stdin:
    if order == "log\\n":
        for step in range(step, step + 1000):
            run.log({"loss": float(step)}, step=step)
        step += 1
    if order == "wait\\n":
        run._shipper._connection._timeout_s = 120.0
    print(run._shipper._failures, flush=True)
    if order == "end\\n":
        break
assert run.finish(), "not everything is on the server"
"""
Told = Callable[[str], int]


@pytest.fixture
def gated(live_server: LiveServer) -> Iterator[Gate]:
    with gate(live_server.url) as door:
        yield door


def teller(process: subprocess.Popen[str]) -> Told:
    """Return what gives the script an order and returns how many tries in a row have failed."""

    def tell(order: str) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{order}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    return tell


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("mode", "tries"),
    [
        pytest.param("refuse", TRIES_OF_AN_HOUR, marks=pytest.mark.slow),
        pytest.param("bad gateway", TRIES_OF_AN_HOUR, marks=pytest.mark.slow),
        ("hang", 5),
        ("lost answer", 5),
    ],
)
def test_a_server_that_comes_back_has_everything_once(
    environ: dict[str, str], start: Script, gated: Gate, client_home: Path, mode: Mode, tries: int
) -> None:
    process = start(TRAINING, {**environ, "PARLAB_URL": gated.url}, "0.2" if mode == "hang" else "30")
    tell = teller(process)
    tell("log")
    wait_for(lambda: Run.objects.exists() and len(steps_of(Run.objects.get(), "loss")) == 1_000, "it reports")
    gated.set(mode)
    tell("log")
    # The script goes on: each order is answered while the server is away.
    wait_for(lambda: tell("look") >= tries, "an hour of tries")
    tell("log")
    tell("wait")  # only a server that hangs is given up soon
    gated.set("open")
    wait_for(lambda: tell("look") == 0, "the server is reached again")
    gated.set("refuse")
    tell("log")
    gated.set("open")
    tell("end")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.count("the data stays on disk") <= 4
    run = Run.objects.get()
    steps = steps_of(run, "loss")
    assert steps == list(range(len(steps)))
    assert len(steps) >= 4_000
    assert run.state == "finished"
    assert list((client_home / "spool").iterdir()) == []


@pytest.mark.slow
def test_a_server_whose_process_ends_and_starts_again_has_everything_once(
    offline: dict[str, str], start: Script, tmp_path: Path
) -> None:
    port = free_port()
    with served(tmp_path / "data", port=port) as server:
        process = start(TRAINING, {**offline, **server.variables}, "30")
        tell = teller(process)
        tell("log")
        address = "/api/experiments/away/runs/1/"
        wait_for(lambda: server.connection().json("GET", "/api/experiments/?q=Away")["count"], "it reports")
    tell("log")
    wait_for(lambda: tell("look") >= TRIES_OF_AN_HOUR, "an hour of tries")
    tell("log")
    with served(tmp_path / "data", port=port) as server:
        tell("end")
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        rows = server.connection().request("GET", f"{address}series/?metric=loss&as=csv")[0].decode().splitlines()
        assert [int(row.split(",")[1]) for row in rows[1:]] == list(range(3_000))
        assert server.connection().json("GET", address)["state"] == "finished"
