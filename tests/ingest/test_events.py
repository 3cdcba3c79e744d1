from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.ingest.batches.events import MAX_METRICS, Limits, Parsed, parse
from parlab.series.columns import Columns

from .output import event, step, training

ODD_LINES = [
    b'{"parlab":',
    b'{"parlab":1',
    b'{"parlab":1}',
    b'{"parlab":1}{"parlab":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":["step"],"step":1,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":{},"step":1,"x":1}',
    b'{"parlab":' + b"[" * 3_000,
    b'{"parlab":' + b'{"a":' * 700,
    b'{"parlab":1,"t":NaN,"rank":0,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1e999,"rank":0,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":-5,"rank":0,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":"1","rank":0,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":true,"rank":0,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1,"rank":2,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1,"rank":-2,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1,"rank":0.0,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1,"rank":true,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1,"rank":99999999999999999999999999,"event":"step","step":1,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":null,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":1.0,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":true,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":-1,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":2147483648,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":NaN,"x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":1,"' + b"x" * 81 + b'":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":1,"":1,"a b":1,"<b>":1,"\xc3\xa9":1,"a\\u0000":1,"timer/x":1}',
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":1,"a\\ud800":1,"x":NaN}'.replace(b'"x"', b'"-x"'),
    b'{"parlab":1,"t":1,"rank":0,"event":"step","step":1,"big":"' + b"y" * 5_000 + b'","x":1}',
    b'{"parlab":\xff\xfe}',
]


def read(output: bytes, world_size: int = 2) -> Parsed:
    return parse(output, limits=Limits(world_size))


def plain(series: Mapping[tuple[str, int], Columns]) -> dict[tuple[str, int], list[tuple[int, float, str]]]:
    return {
        key: list(zip(c.steps.tolist(), c.times.tolist(), map(repr, c.values.tolist()), strict=True))
        for key, c in series.items()
    }


def test_every_number_of_a_step_becomes_a_point() -> None:
    parsed = read(
        event(
            rank=1, t=7.125, step=3, warmup=True, step_time_s=0.5, samples=16, text="no", timers_s={"optimizer": 0.25}
        )
    )
    assert plain(parsed.series) == {
        ("warmup", 1): [(3, 7.125, "1.0")],
        ("step_time_s", 1): [(3, 7.125, "0.5")],
        ("samples", 1): [(3, 7.125, "16.0")],
        ("timer/optimizer", 1): [(3, 7.125, "0.25")],
    }
    assert (parsed.last_step, parsed.points, parsed.refused) == (3, 4, {})


def test_metrics_of_one_rank_share_their_steps_and_times() -> None:
    series = read(training(20)).series
    assert series["step_time_s", 0].steps is series["timer/forward-compute", 0].steps
    assert series["step_time_s", 0].times is series["timer/forward-compute", 0].times


def test_a_metric_that_is_missing_from_some_steps_keeps_its_own_steps() -> None:
    parsed = read(step(1) + step(2, loss=5.0) + step(3) + step(4, loss=4.0) + step(5))
    assert plain(parsed.series)["loss", 0] == [(2, 1_700_000_002.0, "5.0"), (4, 1_700_000_004.0, "4.0")]
    assert parsed.series["step_time_s", 0].steps.tolist() == [1, 2, 3, 4, 5]


def test_telemetry_belongs_to_the_latest_step() -> None:
    telemetry = event("telemetry", rank=-1, cpu_pct=50)
    parsed = read(telemetry + step(1) + step(2, rank=1) + telemetry)
    assert parsed.series["cpu_pct", -1].steps.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("printed", "value"),
    [("null", math.nan), ("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e999", math.inf)],
)
def test_a_loss_of_nan_is_a_point(printed: str, value: float) -> None:
    line = step(1, loss="L").replace(b'"L"', printed.encode())
    assert repr(read(line).series["loss", 0].values.tolist()) == repr([value])


def test_a_number_beyond_64_bits_is_a_float() -> None:
    line = step(1, huge="H", nan="N").replace(b'"H"', b"9" * 400).replace(b'"N"', b"NaN")
    assert read(line).series["huge", 0].values.tolist() == [math.inf]
    assert read(step(1, huge=2**70)).series["huge", 0].values.tolist() == [2.0**70]


@pytest.mark.parametrize("line", ODD_LINES)
def test_an_invalid_line_is_counted_and_adds_no_point(line: bytes) -> None:
    parsed = read(line + b"\n" + step(1, loss=2.0))
    assert set(parsed.series) == {("warmup", 0), ("step_time_s", 0), ("loss", 0)}
    assert parsed.refused or b'"event":' in line  # events with other names are ignored


def test_an_invalid_name_loses_only_its_own_point() -> None:
    fields: dict[str, Any] = {"a b": 1, "loss": 2.0}
    parsed = read(step(1, **fields))
    assert ("loss", 0) in parsed.series
    assert parsed.refused.total() == 1


def test_an_attempt_has_a_limited_number_of_metrics() -> None:
    names: list[dict[str, Any]] = [{f"m{line}_{number}": 1 for number in range(50)} for line in range(6)]
    lines = b"".join(step(1, **fields) for fields in names)
    few = Limits(2, metrics=200)
    parsed = parse(lines, limits=few)
    assert len({metric for metric, _ in parsed.series}) == 200
    later = parse(lines + step(2, new=1), limits=few, existing_metrics={metric for metric, _ in parsed.series})
    assert ("new", 0) not in later.series


def test_a_run_keeps_ten_thousand_names_and_what_is_measured_beside_them() -> None:
    fields: list[dict[str, Any]] = [{f"layer{at}.{number}": 1 for number in range(100)} for at in range(100)]
    lines = b"".join(step(at, **each) for at, each in enumerate(fields))
    parsed = read(lines)
    assert len([metric for metric, _ in parsed.series if metric.startswith("layer")]) == 10_000
    assert not parsed.refused
    assert MAX_METRICS >= 10_000 + 1_000


def test_an_unfinished_line_is_not_parsed() -> None:
    assert read(step(1)[:-1]).points == 0
    assert read(step(1)[:-1] + b"\r\n").points == 2


def test_noteworthy_events_are_facts() -> None:
    parsed = read(
        event("start", engine="pipeline") + event("operations", step=1) + event("oom", rank=1, requested_bytes=7)
    )
    assert [(fact.event, fact.rank) for fact in parsed.facts] == [("start", 0), ("oom", 1)]
    assert parsed.facts[1].fields["requested_bytes"] == 7


def test_operations_are_stored_by_step_and_rank_and_restart_with_their_first_part() -> None:
    passes = [["forward-compute", 0, 0.0, 0.5], ["optimizer", -1, 1, 2]]
    lines = [
        event("operations", step=3, part=0, operations=[["backward-compute", 7, 0.0, 9.0]]),
        event("operations", step=3, part=0, operations=passes[:1]),
        event("operations", step=3, part=1, operations=[*passes[1:], "<script>", ["optimizer", 0]]),
        event("operations", rank=1, step=3, part=1, operations=passes[1:]),
        event("operations", step=-3, part=0, operations=passes),
        event("operations", step=3, part=0, operations={}),
    ]
    parsed = read(b"".join(lines))
    assert [(operation.name, operation.micro_batch) for operation in parsed.operations[3, 0].operations] == [
        ("forward-compute", 0),
        ("optimizer", -1),
    ]
    assert parsed.operations[3, 0].is_begin
    assert not parsed.operations[3, 1].is_begin
    assert len(parsed.operations) == 2
    assert parsed.refused == {"invalid operation": 2, "invalid step": 2}


def test_the_number_of_facts_is_limited() -> None:
    assert len(read(event("error", traceback="x") * 5_000).facts) == 100


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
field_names = st.sampled_from(["t", "rank", "event", "step", "loss", "timers_s", "warmup", "parlab"])
events = st.dictionaries(st.one_of(field_names, st.text(max_size=5)), json_values, max_size=8)


def line_of(fields: dict[str, Any]) -> bytes:
    return (
        json.dumps({"parlab": 1, **{key: value for key, value in fields.items() if key != "parlab"}})
        .replace('{"parlab": ', '{"parlab":', 1)
        .encode()
    )


lines = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(ODD_LINES),
    events.map(line_of),
    st.binary(max_size=60).map(lambda junk: b'{"parlab":' + junk),
    st.builds(
        lambda number, rank, value: step(number, rank=rank, loss=value)[:-1],
        st.integers(1, 9),
        st.integers(0, 1),
        st.floats(),
    ),
)


@given(st.lists(lines, max_size=12), st.data())
def test_output_split_anywhere_gives_the_same_points_as_in_one_piece(printed: list[bytes], data: st.DataObject) -> None:
    output = b"".join(line + b"\n" for line in printed)
    whole = read(output)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=4)))
    pieces = [output[a:b] for a, b in zip([0, *cuts], [*cuts, len(output)], strict=True)]
    existing_metrics, last_step, rest, joined = set[str](), None, b"", dict[tuple[str, int], list[Columns]]()
    for piece in pieces:
        rest += piece
        parsed = parse(rest, limits=Limits(2), existing_metrics=existing_metrics, last_step=last_step)
        rest = rest[rest.rfind(b"\n") + 1 :]
        last_step = parsed.last_step
        for key, columns in parsed.series.items():
            existing_metrics.add(key[0])
            joined.setdefault(key, []).append(columns)
    assert plain({key: Columns.joined(parts) for key, parts in joined.items()}) == plain(whole.series)
    assert last_step == whole.last_step


def test_steps_with_metrics_only_are_read_like_others_and_in_their_order() -> None:
    def step(number: int, **metrics: object) -> str:
        return json.dumps(
            {"parlab": 1, "t": 5.0 + number, "rank": 0, "event": "step", "step": number, "metrics": metrics}
        )

    lines = [
        step(1, a=1.0, b=2.0),
        step(2, a=2.0, b=3.0),
        step(3, a=None, b=4.0),  # NaN
        step(4, a=4.0),
        step(5, a=5.0, b="inf"),
        step(6, a=6.0),
        step(7, a=7, b=8.0),
        step(-1, a=0.5),  # before the first step: refused
        step(8, a=8.0, b=True),
    ]
    parsed = parse("\n".join([*lines, ""]).encode(), limits=Limits(1))
    a, b = parsed.series["a", 0], parsed.series["b", 0]
    assert a.steps.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [str(value) for value in a.values.tolist()] == ["1.0", "2.0", "nan", "4.0", "5.0", "6.0", "7.0", "8.0"]
    assert (b.steps.tolist(), b.values.tolist()) == ([1, 2, 3, 5, 7, 8], [2.0, 3.0, 4.0, float("inf"), 8.0, 1.0])
    assert a.times.tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0]
    assert (parsed.steps, parsed.last_step) == (8, 8)


def test_the_offset_of_a_clock_is_taken_out_of_every_step_with_metrics_only() -> None:
    lines = [
        {"parlab": 1, "t": 100.0 + step, "rank": 0, "event": "step", "step": step, "metrics": {"loss": 1.0}}
        for step in range(3)
    ]
    output = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    series = parse(output, limits=Limits(1), clock_offset_s=60.0).series
    assert series["loss", 0].times.tolist() == [40.0, 41.0, 42.0]


def test_metrics_of_a_line_of_new_names_count_to_the_limit_and_lose_only_invalid_names() -> None:
    limits = Limits(1, metrics=3)

    def line(step: int, *names: str) -> bytes:
        metrics = dict.fromkeys(names, 1.5)
        fields = {"parlab": 1, "t": 1.0, "rank": 0, "event": "step", "step": step, "metrics": metrics}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    parsed = parse(line(1, "a", "b") + line(2, "a", "timer/x") + line(3, "c", "d") + line(4, "e"), limits=limits)
    assert {metric: columns.steps.tolist() for (metric, _), columns in parsed.series.items()} == {
        "a": [1, 2],
        "b": [1],
        "c": [3],
    }
    assert parsed.refused == {"invalid metric name": 1, "more than 3 metrics": 2}
