"""`parlab.should_stop` in real processes that get real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest

from parlab.client.stopping import CHECKPOINTED
from tests.client.conftest import ROOT

LOOP = """
import sys, time, parlab
from parlab.client.stopping import CHECKPOINTED, reason
print(parlab.should_stop(), flush=True)
until = time.monotonic() + 20
while not parlab.should_stop():
    time.sleep(0.01)
    assert time.monotonic() < until
print("saved after", reason(), flush=True)
sys.exit(CHECKPOINTED)
"""


def start(script: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2"])
def test_the_warning_signal_and_sigterm_let_a_script_save_and_end(name: str) -> None:
    process = start(LOOP, {"PARLAB_WARN_SIGNAL": "SIGUSR2"})
    assert first_line(process) == "False\n"
    process.send_signal(getattr(signal, name))
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == (f"saved after {name}\n", CHECKPOINTED)


def test_a_script_that_never_asks_ends_as_before() -> None:
    process = start("import parlab, time; parlab.should_stop; print('ready', flush=True); time.sleep(30)")
    assert first_line(process) == "ready\n"
    process.terminate()
    assert process.wait(timeout=30) == -signal.SIGTERM


def test_an_earlier_handler_of_the_script_is_called_too() -> None:
    script = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))\n" + LOOP
    process = start(script)
    assert first_line(process) == "False\n"
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert output == "mine\nsaved after SIGTERM\n"


def test_another_thread_may_ask_and_learns_what_the_main_thread_received() -> None:
    asks = """
import threading
answers = []
def ask(): answers.append(parlab.should_stop())
import parlab, os, signal
def in_thread():
    thread = threading.Thread(target=ask); thread.start(); thread.join()
in_thread()
parlab.should_stop()
os.kill(os.getpid(), signal.SIGTERM)
in_thread()
print(answers, flush=True)
"""
    process = start(asks)
    output, _ = process.communicate(timeout=30)
    assert (output.splitlines()[-1], process.returncode) == ("[False, True]", 0)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGNONE", "", "default_int_handler"])
def test_a_name_that_is_no_usable_signal_is_ignored(name: str) -> None:
    process = start("import parlab; print(parlab.should_stop())", {"PARLAB_WARN_SIGNAL": name})
    assert process.communicate(timeout=30)[0] == "False\n"
