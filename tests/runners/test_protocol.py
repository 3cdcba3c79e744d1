"""Messages between server and node: what is refused, and that nothing changes on the way."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from runners.wire.protocol import FINAL_STATES, MAX_BATCH_BYTES, Batch, Cancel, Report, RunSpec, RunState, sign, verify
from runners.wire.trust import Untrusted

KEY = b"secret"
SPEC = RunSpec(run=1, attempt=2, node="n1", config={"train": {"iterations": 3}})


def test_a_signed_message_comes_out_as_it_went_in() -> None:
    assert verify(json.loads(json.dumps(sign(SPEC, KEY))), KEY, RunSpec, node="n1") == SPEC


@pytest.mark.parametrize(
    "envelope",
    [None, "text", 5, [], {}, {"payload": "x"}, {"payload": 1, "signature": "x"}, {"payload": "x", "signature": "ü"}],
)
def test_what_is_no_envelope_is_refused(envelope: Any) -> None:
    with pytest.raises(Untrusted):
        verify(envelope, KEY, RunSpec, node="n1")


def test_another_key_is_refused() -> None:
    with pytest.raises(Untrusted, match="the keys of node and server differ"):
        verify(sign(SPEC, b"other"), KEY, RunSpec, node="n1")


def test_any_change_of_the_payload_is_refused() -> None:
    envelope = sign(SPEC, KEY)
    envelope["payload"] = envelope["payload"].replace('"attempt": 2', '"attempt": 3')
    with pytest.raises(Untrusted, match="altered"):
        verify(envelope, KEY, RunSpec, node="n1")


def test_an_expired_message_is_refused_with_a_hint_about_clocks() -> None:
    with pytest.raises(Untrusted, match=r"expired 5 s ago; check the clocks"):
        verify(sign(SPEC, KEY, lifetime_s=-5), KEY, RunSpec, node="n1")


def test_a_message_for_another_node_or_purpose_is_refused() -> None:
    with pytest.raises(Untrusted, match="meant for node n1, this is n2"):
        verify(sign(SPEC, KEY), KEY, RunSpec, node="n2")
    with pytest.raises(Untrusted, match="signed for node n1 and as start, but sent as cancel"):
        verify(sign(SPEC, KEY), KEY, Cancel, node="n1")
    with pytest.raises(Untrusted, match="signed for node n1 and as cancel, but sent as start"):
        verify(sign(Cancel(run=1, attempt=2, node="n1"), KEY), KEY, RunSpec, node="n1")


reports = st.builds(
    Report,
    state=st.sampled_from(["running", "finished", "lost"]),
    at=st.floats(0, 1e10),
    exit_code=st.none() | st.integers(-64, 255),
    reason=st.text(max_size=50),
    command=st.lists(st.text(max_size=10), max_size=3),
)


@given(output=st.binary(max_size=2000), sent=st.lists(reports, max_size=3), start=st.integers(0, 2**50))
def test_a_batch_comes_out_as_it_went_in_whatever_was_printed(output: bytes, sent: list[Report], start: int) -> None:
    batch = Batch(run=1, attempt=1, node="n1", sequence=start, next_sequence=start + 9, output=output, reports=sent)
    assert Batch.from_wire(json.loads(json.dumps(batch.to_wire()))) == batch


def wire(output: str) -> dict[str, Any]:
    return {"run": 1, "attempt": 1, "node": "n1", "sequence": 0, "next_sequence": 1, "output": output}


@pytest.mark.parametrize("output", ["no base64!", base64.b64encode(b"no zlib").decode(), 5])
def test_output_that_cannot_be_unpacked_is_refused(output: Any) -> None:
    with pytest.raises(ValueError):
        Batch.from_wire(wire(output))


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = base64.b64encode(zlib.compress(bytes(8 * MAX_BATCH_BYTES))).decode()
    with pytest.raises(ValueError, match="unpacks to more than"):
        Batch.from_wire(wire(bomb))


def test_messages_with_anything_unknown_are_refused() -> None:
    with pytest.raises(ValidationError):
        RunSpec.model_validate({**SPEC.model_dump(), "shell": "rm -rf"})


def test_a_state_is_either_active_or_final() -> None:
    assert [state for state in RunState if not state.is_final] == ["queued", "dispatched", "running"]
    assert len(FINAL_STATES) == 8
