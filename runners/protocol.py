"""The messages between server and node, and the states of a run.

Server to node (Celery tasks on the node's own queue): `start` with a signed RunSpec, `cancel` with a
signed Cancel, `acknowledge`. Node to server: `apply_batch` on the queue INGEST_QUEUE with a Batch,
`heartbeat` on CONTROL_QUEUE with a Heartbeat. See docs/server-node.md.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import zlib
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

INGEST_QUEUE = "ingest"
CONTROL_QUEUE = "control"
APPLY_BATCH_TASK = "parlab.ingest.apply_batch"
HEARTBEAT_TASK = "parlab.fleet.heartbeat"
START_TASK = "runners.start"
CANCEL_TASK = "runners.cancel"
ACKNOWLEDGE_TASK = "runners.acknowledge"

HEARTBEAT_S = 2.0
"""A node says this often that it lives and which runs it holds."""
LEASE_S = 30.0
"""A run whose node was silent for this long is lost."""
SPEC_LIFETIME_S = 600.0
"""A signed message older than this is refused; the server sends a new one as long as it is wanted."""
MAX_BATCH_BYTES = 1 << 20
"""Output bytes of one batch at most."""
OOM_EXIT_CODE = 77
"""Exit code of an engine that ran out of memory."""


def node_queue(node: str) -> str:
    """Name of the queue that only this node reads."""
    return f"node.{node}"


class RunState(StrEnum):
    """States of an attempt in the only order in which they may follow each other."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    FINISHED = "finished"
    OOM = "oom"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        return self not in (RunState.QUEUED, RunState.DISPATCHED, RunState.RUNNING)


FINAL_STATES = tuple(state for state in RunState if state.is_final)
ACTIVE_STATES = tuple(state for state in RunState if not state.is_final)


class Message(BaseModel):
    """A message that is refused when it holds anything unknown."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSpec(Message):
    """Everything a node needs to start one attempt of one run."""

    purpose: Literal["start"] = "start"
    run: int
    attempt: int
    node: str
    config: dict[str, Any]
    """A resolved RunConfig; the node validates it again."""


class Cancel(Message):
    """Stop one attempt, whether it has started or not."""

    purpose: Literal["cancel"] = "cancel"
    run: int
    attempt: int
    node: str
    reason: str = "cancelled"


M = TypeVar("M", RunSpec, Cancel)


class BadSignature(ValueError):
    """A signed message that is forged, damaged, expired or meant for another node or purpose."""


def sign(message: RunSpec | Cancel, key: bytes, *, lifetime_s: float = SPEC_LIFETIME_S) -> dict[str, str]:
    """Wrap a message in an envelope {"payload", "signature"}: HMAC-SHA256 over payload with its expiry."""
    payload = json.dumps({"expires_at": time.time() + lifetime_s, "message": message.model_dump(mode="json")})
    return {"payload": payload, "signature": _signature(payload, key)}


def verify(envelope: Any, key: bytes, kind: type[M], *, node: str) -> M:
    """Unwrap a signed message, or raise BadSignature saying what is wrong with it."""
    try:
        payload, signature = envelope["payload"], envelope["signature"]
        authentic = hmac.compare_digest(_signature(payload, key), signature)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise BadSignature("not a signed message: an envelope has a payload and a signature") from error
    if not authentic:
        raise BadSignature(
            "signature does not match: this node's key differs from the server's, or the message was altered"
        )
    content = json.loads(payload)
    if content["expires_at"] < time.time():
        raise BadSignature(
            f"expired {time.time() - content['expires_at']:.0f} s ago; check the clocks of server and node"
        )
    try:
        message = kind.model_validate(content["message"])
    except ValidationError as error:
        raise BadSignature(f"signed, but no {kind.__name__}: {error}") from error
    if message.node != node:
        raise BadSignature(f"meant for node {message.node}, this is {node}")
    return message


def _signature(payload: str, key: bytes) -> str:
    return hmac.new(key, payload.encode(), hashlib.sha256).hexdigest()


class Report(Message):
    """What a supervisor says of its run: that it runs, or how it ended."""

    state: Literal["running", "finished", "oom", "failed", "cancelled", "lost"]
    at: float
    """Unix seconds."""
    exit_code: int | None = None
    """Exit code of the launched command; negative for a signal."""
    reason: str = ""
    """One sentence for people: what happened and, where known, what to do."""
    traceback: str = ""
    """Last traceback of the rank that failed first."""
    command: list[str] = []
    """What was launched, as argv."""
    environment: dict[str, Any] = {}
    """Host, devices, driver, package versions, git revision."""


class Batch(Message):
    """A piece of an attempt's spool: bytes [sequence, next_sequence), output first, then reports."""

    run: int
    attempt: int
    node: str
    sequence: int = Field(ge=0)
    next_sequence: int = Field(ge=0)
    output: bytes = b""
    """Raw output of the process group, cut at line ends wherever a line is shorter than a record."""
    reports: list[Report] = []

    def to_wire(self) -> dict[str, Any]:
        """JSON form: output compressed and in base64."""
        data = self.model_dump(mode="json", exclude={"output"})
        data["output"] = base64.b64encode(zlib.compress(self.output, 1)).decode()
        return data

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Read the JSON form; raises ValueError when it is no batch or unpacks to more than a batch may hold."""
        unpacker = zlib.decompressobj()
        limit = 4 * MAX_BATCH_BYTES
        try:
            output = unpacker.decompress(base64.b64decode(data.get("output", ""), validate=True), limit)
        except (zlib.error, TypeError, AttributeError) as error:
            raise ValueError(f"batch output cannot be unpacked: {error}") from error
        if unpacker.unconsumed_tail:
            raise ValueError(f"batch output unpacks to more than {limit} bytes")
        if data.get("output") and not unpacker.eof:
            raise ValueError("batch output is cut off")
        return cls.model_validate({**data, "output": output})


class HeldRun(Message):
    """An attempt that a node holds, in a heartbeat."""

    run: int
    attempt: int
    alive: bool
    """False once the process group has ended and only its spool is left to ship."""


class Heartbeat(Message):
    """A node's sign of life; renews the leases of the runs that it holds."""

    node: str
    pool: str
    sent_at: float
    slots: int = Field(ge=1)
    """Runs that the node takes at a time."""
    version: str
    hardware: dict[str, Any]
    """{"hostname", "cpu_model", "cpu_cores", "memory_bytes", "gpus": [{"index", "name", "memory_bytes", "uuid"}],
    "driver"}"""
    held: list[HeldRun]


# How engines mark the lines that are events; every other line is log.
EVENT_PREFIX = b'{"parlab":'
EVENT_LINE_LIMIT = 4_096
"""Bytes; an event is shorter, so that one write to a shared pipe carries it whole. A longer line is log."""
