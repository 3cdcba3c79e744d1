from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.engines.process.events import MAX_LINE_BYTES, Printer
from runners.wire.protocol import EVENT_PREFIX
from tests.patience import PATIENCE_S


class Pipe:
    """A pipe that is read while it is written to."""

    def __init__(self) -> None:
        self._read, self.write = os.pipe()
        self._data = b""
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()

    def _drain(self) -> None:
        with os.fdopen(self._read, "rb") as pipe:
            self._data = pipe.read()

    def lines(self) -> list[bytes]:
        os.close(self.write)
        self._reader.join(PATIENCE_S)
        return self._data.splitlines(keepends=True)


def printed(write: Callable[[Printer], None]) -> list[dict[str, Any]]:
    pipe = Pipe()
    try:
        write(Printer(3, pipe.write))
    finally:
        lines = pipe.lines()
    for line in lines:
        assert line.startswith(EVENT_PREFIX)
        assert line.endswith(b"\n")
        assert len(line) <= MAX_LINE_BYTES < 4096
    return [json.loads(line) for line in lines]


def test_an_event_has_rank_time_and_name() -> None:
    (event,) = printed(lambda printer: printer.emit("end", iterations=4))
    assert event.pop("t") > 1.7e9
    assert event == {"parlab": 1, "rank": 3, "event": "end", "iterations": 4}


def test_a_loss_that_diverged_is_null_and_the_line_still_json() -> None:
    (event,) = printed(lambda printer: printer.emit("step", loss=float("nan"), step_time_s=float("inf"), step=2))
    assert (event["loss"], event["step_time_s"], event["step"]) == (None, None, 2)


@settings(deadline=None)
@given(st.text(max_size=12_000), st.text(max_size=6_000))
def test_texts_of_any_length_and_kind_fit_into_one_line(traceback: str, message: str) -> None:
    (event,) = printed(lambda printer: printer.emit("error", traceback=traceback * 3, message=message))
    assert event["event"] == "error"


def test_a_long_traceback_keeps_its_start_and_end() -> None:
    traceback = "Traceback begin\n" + 'é"\\' * 5_000 + "\nValueError: the end"
    (event,) = printed(lambda printer: printer.emit("error", traceback=traceback))
    assert event["traceback"].startswith("Traceback begin")
    assert event["traceback"].endswith("ValueError: the end")
    assert len(json.dumps(event["traceback"])) > 3_000


def test_an_event_that_cannot_be_shortened_is_refused() -> None:
    with pytest.raises(ValueError, match=r"event step has .* bytes; use at most 4095"):
        printed(lambda printer: printer.emit("step", values=list(range(2_000))))


@settings(deadline=None)
@given(st.integers(1, 400))
def test_operations_are_split_into_parts_that_contain_each_once_in_order(count: int) -> None:
    operations = [("backward-compute", k, 1000.123456 + k, 1000.223456 + k) for k in range(count)]
    events = printed(lambda printer: printer.emit_operations(17, operations))
    assert [event["part"] for event in events] == list(range(len(events)))
    assert {event["step"] for event in events} == {17}
    assert [tuple(entry) for event in events for entry in event["operations"]] == operations


def test_no_operations_print_nothing() -> None:
    assert printed(lambda printer: printer.emit_operations(1, [])) == []


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """A full non-blocking pipe."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while os.write(write, b"x" * 4096):
            pass
    except BlockingIOError:
        pass
    yield read, write
    os.close(write)


def test_a_full_pipe_that_does_not_block_is_waited_for(full_pipe: tuple[int, int]) -> None:
    read, write = full_pipe
    thread = threading.Thread(target=Printer(0, write).log, args=("here at last",))
    thread.start()
    data = b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while not data.endswith(b"here at last\n"):
            data += pipe.read(65536)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_lines_of_ranks_that_share_a_pipe_do_not_mix() -> None:
    pipe = Pipe()
    children = []
    for rank in range(3):
        child = os.fork()
        if child == 0:
            printer = Printer(rank, pipe.write)
            for step in range(300):
                printer.emit("step", step=step, filling="x" * (1 + (step * 37) % 3900))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    events = [json.loads(line) for line in pipe.lines()]
    for rank in range(3):
        assert [event["step"] for event in events if event["rank"] == rank] == list(range(300))
