"""Lines that repeat a layout are read as the reader itself reads them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from parlab.formats import records
from parlab.formats.records import Record
from parlab.formats.repeats import Repeats, same
from tests.bench.readers import LINES, sample
from tests.formats.mutations import damaged
from tests.formats.test_fuzz import SAMPLES


def slowly(lines: list[str], format: str | None, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    with monkeypatch.context() as patch:
        patch.setattr(Repeats, "fast", lambda *_: None)
        return list(records(lines, format))


def differences(lines: list[str], format: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[object, ...]]:
    fast, slow = list(records(lines, format)), slowly(lines, format, monkeypatch)
    if len(fast) != len(slow):
        yield "count", len(fast), len(slow)
    yield from ((one, other) for one, other in zip(fast, slow, strict=False) if not alike(one, other))


def alike(fast: Record, slow: Record) -> bool:
    """Compare two records; a dictionary that Python printed has no printed digits, so its raw texts may differ."""
    if [float(text) for text in fast.raw if is_number(text)] == [float(text) for text in slow.raw if is_number(text)]:
        slow.raw = fast.raw
    return same(fast, slow)


def is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


@pytest.mark.parametrize("format", sorted(LINES))
def test_steps_of_every_format_are_read_alike(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(differences(list(sample(format, 1, 300)), format, monkeypatch)) == []


def test_samples_and_damaged_samples_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    for text in SAMPLES:
        for content in (text[:20_000], damaged(rng, text[:4_000]) * 2):
            assert list(differences(content.splitlines(keepends=True), None, monkeypatch)) == []


def test_a_layout_that_occurs_twice_is_not_read_by_its_reader_again() -> None:
    calls = 0

    def read(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        nonlocal calls
        calls += 1
        step, seconds = text.split()
        return [Record("step", line, {"step_time_s": float(seconds)}, int(step), rank, time)]

    repeats = Repeats(read)
    steps = [repeats.read(n, 3, None, f"{n} {n}.25\n")[0] for n in range(1, 1_001)]
    assert [step.iteration for step in steps] == list(range(1, 1_001))
    assert [step.values["step_time_s"] for step in steps] == [n + 0.25 for n in range(1, 1_001)]
    assert calls == 4


def test_a_value_that_follows_from_several_numbers_always_goes_to_the_reader() -> None:
    def read(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        first, second = map(float, text.split())
        return [Record("metrics", line, {"sum": first + second})]

    repeats = Repeats(read)
    assert [repeats.read(n, None, None, f"{n} 3")[0].values["sum"] for n in range(9)] == [n + 3.0 for n in range(9)]
