"""The messages between server and node, and the states of a run.

Server to node (Celery tasks on the node's own queue): `start` with a RunSpec, `go` with Go, `cancel` with Cancel,
`acknowledge` with Acknowledge, `rotate` with Rotate. Node to server: `apply_batch` on the queue INGEST_QUEUE with a
Batch, `heartbeat` and `enrol` on CONTROL_QUEUE with Heartbeat and Enrol. All are signed (runners/wire/trust.py). See
docs/understand/server-node.md and docs/operate/security.md.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runners.wire.trust import LIFETIME_S, Key, Seen, Untrusted, open_envelope, seal, shared_key

INGEST_QUEUE = "ingest"
BACKLOG_QUEUE = "backlog"
"""Batches of runs whose spool holds more than the batch; workers take them after those in INGEST_QUEUE."""
CONTROL_QUEUE = "control"
APPLY_BATCH_TASK = "parlab.ingest.apply_batch"
HEARTBEAT_TASK = "parlab.fleet.heartbeat"
START_TASK = "runners.start"
GO_TASK = "runners.go"
CANCEL_TASK = "runners.cancel"
ACKNOWLEDGE_TASK = "runners.acknowledge"
ROTATE_TASK = "runners.rotate"
ENROL_TASK = "parlab.fleet.enrol"

HEARTBEAT_S = 2.0
"""Interval of heartbeats, which list the runs of the node."""
LEASE_S = 30.0
"""A run whose node sends no heartbeat for this long is lost, unless the heartbeat asks for a longer lease."""
PREPARE_S = 30.0
"""All nodes of an attempt must have prepared within this time after its dispatch."""
SPEC_LIFETIME_S = LIFETIME_S
"""A signed message older than this is refused; the server sends a new one if it is still needed."""
ANSWER_LIFETIME_S = 3600
"""Lifetime of the answer to a polled batch."""
POSTED_LIFETIME_S = 7 * 86400
"""Lifetime of the answer to a batch that a pod has posted: its controller may be away for long."""
MAX_BATCH_BYTES = 1 << 20
"""Maximum bytes of output in one batch."""
OOM_EXIT_CODE = 77
"""Exit code of an engine that ran out of memory."""


def node_queue(node: str, state_id: str = "") -> str:
    """Return the name of the queue of a node, or of the daemon with a state directory: two may have one node name."""
    return f"node.{node}@{state_id}" if state_id else f"node.{node}"


def answer_key(run: int, attempt: int, node_rank: int) -> str:
    """Return the key in Redis of the last answer to polled batches: the envelope of an Acknowledge as JSON."""
    return f"parlab:stored:{run}/{attempt}/{node_rank}"


def enrolled_key(key_id: str) -> str:
    """Return the key in Redis of the answer to an enrolment: an envelope signed with the one-time code, as JSON."""
    return f"parlab:enrolled:{key_id}"


def login_key(state_id: str) -> str:
    """Return the key in Redis by which a compute node recognises the Redis of its login node."""
    return f"parlab:login:{state_id}"


class RunState(StrEnum):
    """States of an attempt, in the only order in which they may follow each other."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    FINISHED = "finished"
    OOM = "oom"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    CHECKPOINTED = "checkpointed"
    TIME_LIMIT = "time-limit"
    PREEMPTED = "preempted"

    @property
    def is_final(self) -> bool:
        return self not in (RunState.QUEUED, RunState.DISPATCHED, RunState.RUNNING)


FINAL_STATES = tuple(state for state in RunState if state.is_final)
ACTIVE_STATES = tuple(state for state in RunState if not state.is_final)


class Message(BaseModel):
    """A message; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSpec(Message):
    """Order to prepare one member of an attempt: its directory, address and port. Its ranks start with Go."""

    purpose: Literal["start"] = "start"
    run: int
    attempt: int
    node: str
    config: dict[str, Any]
    """A resolved RunConfig; the node validates it again."""
    node_rank: int = Field(default=0, ge=0)
    """Number of the node among the nodes of the attempt."""
    nodes: int = Field(default=1, ge=1)
    """Number of nodes of the attempt."""
    saved_step: int | None = Field(default=None, ge=1, exclude_if=lambda step: step is None)
    """Last step whose checkpoint an earlier attempt has written, which this one continues from."""


class Peer(Message):
    """One member of an attempt, as the others reach it."""

    node: str
    node_rank: int = Field(ge=0)
    address: str
    port: int = Field(default=0, ge=0, le=65535)
    """Port of the rendezvous; only that of node_rank 0 is used."""
    clock_offset_s: float = 0.0
    """Clock of the node minus that of the server's Redis, in seconds."""


class Go(Message):
    """Order to start the ranks of a prepared member; all members of the attempt are prepared."""

    purpose: Literal["go"] = "go"
    run: int
    attempt: int
    node: str
    node_rank: int = Field(default=0, ge=0)
    members: list[Peer] = Field(min_length=1)
    """All members in the order of their node_rank; the ranks meet at address and port of the first."""


class Cancel(Message):
    """Order to stop one attempt, whether it has started or not."""

    purpose: Literal["cancel"] = "cancel"
    run: int
    attempt: int
    node: str
    reason: str = "cancelled"
    node_rank: int = Field(default=0, ge=0)
    is_consequence: bool = False
    """Another member has ended, and no person cancelled: a member that ends by itself reports its own end."""


class PodNote(Message):
    """What a pod that shares no volume with its controller tells it, by way of the server."""

    started_at: float = 0.0
    """When its supervisor started, in Unix seconds; 0: not yet."""
    was_stopped: bool = False
    """Kubernetes has told the supervisor to stop, which leaves the final report to the controller."""
    has_checkpoint: bool = False
    """Its ranks have written a checkpoint after that."""
    end: int | None = Field(default=None, ge=0)
    """Position in its spool after the final report, once that is written."""

    def is_over(self, position: int) -> bool:
        """Return whether a spool that is stored up to a position holds the final report."""
        return self.end is not None and position >= self.end


class Acknowledge(Message):
    """Position up to which the server has stored the spool of a member; -1: it does not know the attempt."""

    purpose: Literal["acknowledge"] = "acknowledge"
    run: int
    attempt: int
    node: str
    node_rank: int = Field(default=0, ge=0)
    position: int = Field(ge=-1)
    note: PodNote | None = Field(default=None, exclude_if=lambda note: note is None)
    """What the pod has told along with its batch."""


class Rotate(Message):
    """Order to agree on the next key of the node; the node answers with Enrol."""

    purpose: Literal["rotate"] = "rotate"
    node: str
    key_id: str = Field(max_length=32)
    public: str = Field(max_length=600)
    """The server's public value, hexadecimal."""


class Enrol(Message):
    """A node's part of the agreement on a key, signed with its one-time code or its current key."""

    key_id: str = Field(max_length=32)
    public: str = Field(max_length=600)
    """The node's public value, hexadecimal."""


Order = RunSpec | Go | Cancel
ToNode = RunSpec | Go | Cancel | Acknowledge | Rotate
M = TypeVar("M", RunSpec, Go, Cancel, Acknowledge, Rotate)
FindKey = Callable[[str, str], bytes]


def sign(message: ToNode, key: Key | bytes, *, lifetime_s: float = SPEC_LIFETIME_S) -> dict[str, Any]:
    """Return the envelope of a message to a node; bytes are the shared key."""
    own = shared_key(key, message.node) if isinstance(key, bytes) else key
    return seal(message.purpose, message.node, message.model_dump(mode="json"), own, lifetime_s=lifetime_s)


def verify(envelope: Any, find_key: FindKey | bytes, kind: type[M], *, node: str, seen: Seen | None = None) -> M:
    """Return the message in an envelope; raises Untrusted with the reason. Bytes are the shared key."""
    purpose = str(kind.model_fields["purpose"].default)
    find = (lambda name, _: shared_key(find_key, name).secret) if isinstance(find_key, bytes) else find_key
    opened = open_envelope(envelope, purpose, find)
    if opened.node != node:
        raise Untrusted(f"meant for node {opened.node}, this is {node}", opened.node)
    try:
        message = kind.model_validate(opened.content)
    except ValidationError as error:
        raise Untrusted(f"signed, but not a valid {kind.__name__}: {error}", node) from error
    if message.node != node:
        raise Untrusted(f"meant for node {message.node}, this is {node}", node)
    if seen is not None and not seen.accept(opened.number):
        raise Untrusted(f"{purpose} was sent twice", node)
    return message


class Rendezvous(Message):
    """Address of a node for the other nodes of the attempt, and the port that its supervisor holds until Go."""

    address: str
    port: int = Field(default=0, ge=0, le=65535)
    """0 except on node_rank 0."""


class Report(Message):
    """State of a member as its supervisor reports it: prepared, running, or how it ended."""

    state: Literal[
        "prepared",
        "running",
        "finished",
        "oom",
        "failed",
        "cancelled",
        "lost",
        "checkpointed",
        "time-limit",
        "preempted",
    ]
    at: float
    """Unix time in seconds."""
    exit_code: int | None = None
    """Exit code of the launched command; negative for a signal."""
    reason: str = ""
    """One sentence: what happened, and the remedy if known."""
    traceback: str = ""
    """Last traceback of the rank that failed first."""
    command: list[str] = []
    """Launched argv."""
    environment: dict[str, Any] = {}
    """Host, devices, driver, package versions, git revision."""
    rendezvous: Rendezvous | None = None
    """Of state prepared: where the other nodes reach this one."""
    first_failed_rank: int | None = None
    """Global number of the rank that failed first on this node, if known."""
    is_consequence: bool = False
    """The output shows that this member ended because another one went away."""
    noticed_at: float | None = None
    """When the supervisor began to end the processes, in Unix seconds: the launcher had ended, or an order came."""

    @property
    def is_final(self) -> bool:
        """Whether it reports how the member ended."""
        return self.state not in ("prepared", "running")


class FilePiece(Message):
    """A piece of a file that a rank has written, such as the trace of a profiler; the pieces come in order."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,99}$")
    rank: int = Field(ge=0)
    offset: int = Field(ge=0)
    size: int = Field(ge=0)
    """Bytes of the whole file."""
    data: str
    """The bytes, in base64."""


class Batch(Message):
    """A piece of an attempt's spool: bytes [sequence, next_sequence), output and pieces of files, then reports."""

    run: int
    attempt: int
    node: str
    sequence: int = Field(ge=0)
    next_sequence: int = Field(ge=0)
    output: bytes = b""
    """Raw output of the process group, split at line ends unless a line is longer than a record."""
    reports: list[Report] = []
    node_rank: int = Field(default=0, ge=0)
    stamps: list[tuple[int, float]] = []
    """When the supervisor read the output: (offset in output, Unix time), in order, at most one per record."""
    streams: list[tuple[int, int, bool]] = []
    """Who printed the output, where it changes: (offset in output, global rank or -1 for the node, whether it begins
    inside a line), in order. Empty: all of it is the node's."""
    files: list[FilePiece] = []
    is_polled: bool = False
    """The sender reads the answer at `answer_key` in Redis, not in the queue of its node, which the daemon reads."""

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON form: output compressed and in base64."""
        # A server that is older than its nodes refuses fields that it does not have.
        data = self.model_dump(mode="json", exclude={"output"} if self.files else {"output", "files"})
        data["output"] = base64.b64encode(zlib.compress(self.output, 1)).decode()
        return data

    @classmethod
    def from_wire(cls, data: dict[str, Any]) -> Self:
        """Read the JSON form; raises ValueError for an invalid batch, or one that is too large when unpacked."""
        unpacker = zlib.decompressobj()
        limit = 4 * MAX_BATCH_BYTES
        try:
            output = unpacker.decompress(base64.b64decode(data.get("output", ""), validate=True), limit)
        except (zlib.error, TypeError, AttributeError) as error:
            raise ValueError(f"batch output cannot be unpacked: {error}") from error
        if unpacker.unconsumed_tail:
            raise ValueError(f"batch output unpacks to more than {limit} bytes")
        if data.get("output") and not unpacker.eof:
            raise ValueError("batch output is truncated")
        return cls.model_validate({**data, "output": output})


class Posted(Message):
    """A batch that a pod sends over HTTP, signed with the key of its attempt; one without bytes carries the note."""

    batch: dict[str, Any]
    """The JSON form of a Batch."""
    note: PodNote = PodNote()


class HeldRun(Message):
    """An attempt that a node holds, in a heartbeat."""

    run: int
    attempt: int
    alive: bool
    """False once the process group has ended, and only its spool has to be shipped."""
    node_rank: int = Field(default=0, ge=0)
    waiting: str = ""
    """Why the attempt has not started on this node, like the reason of a pending Slurm job; PREPARE_S waits for it."""


class NodeAddress(Message):
    """An address of a network interface of a node."""

    interface: str
    address: str
    prefix: int
    """Length of the subnet's prefix, in bits."""


NodeKind = Literal["daemon", "slurm", "kubernetes"]
"""Where a daemon starts runs: on its machine, as jobs of Slurm, or as pods of Kubernetes."""


class Abilities(Message):
    """What a node can run; the server places a run only on nodes that can take it."""

    engines: list[str] = []
    launchers: list[str] = []
    commands: list[list[str]] = []
    """Beginnings of the argument lists that engine command may start here; empty: none."""
    software: dict[str, str] = {}
    """Versions by name: python, torch, ..."""
    addresses: list[NodeAddress] = []
    """Addresses at which other nodes may reach this one."""
    interfaces: list[str] = []
    """Network interfaces that runs may shape."""
    containers: list[str] = []
    """Container runtimes that runs may use; those of Slurm's nodes are not known."""
    images: list[str] = []
    """Beginnings of the images that runs may use; empty: no containers."""
    kind: NodeKind = "daemon"
    own_queue: bool = False
    """Whether the daemon reads the queue of its state directory; earlier releases read that of the node only."""


class Clock(Message):
    """Clock of a node compared with that of the server's Redis."""

    offset_s: float
    """Node minus Redis, in seconds; positive: the node's clock is ahead."""
    error_s: float = Field(ge=0)
    """Half of the round trip of the measurement: the offset may be wrong by this."""


class Refused(Message):
    """Messages that a node or the server refused for one reason."""

    queue: str = Field(max_length=200)
    reason: str = Field(max_length=400)
    sender: str = Field(default="", max_length=200)
    """The node that sent them as far as it is known; anybody may have written it."""
    count: int = Field(ge=1)
    size: int = Field(default=0, ge=0)
    """Bytes of the last one."""
    sample: str = Field(default="", max_length=3_000)
    """Beginning of the last one, with escapes."""
    at: float
    """Unix time of the last one, in seconds."""


class Heartbeat(Message):
    """Heartbeat of a node; renews the leases of its runs."""

    node: str
    pool: str
    sent_at: float
    slots: int = Field(ge=1)
    """Number of runs that the node executes at the same time."""
    version: str
    hardware: dict[str, Any]
    """{"hostname", "cpu_model", "cpu_cores", "memory_bytes", "gpus": [{"index", "name", "memory_bytes", "uuid"}],
    "driver"}"""
    held: list[HeldRun]
    abilities: Abilities | None = None
    """None from a node that does not report them."""
    clock: Clock | None = None
    """None while it has not been measured."""
    lease_s: float | None = Field(default=None, gt=0)
    """Lease that the node asks for; None: the server's setting."""
    is_draining: bool = False
    """The node takes no new runs."""
    state_id: str = ""
    """Identity of the state directory: two daemons with one name have different ones."""
    refused: list[Refused] = Field(default=[], max_length=20)
    """Messages in the queue of the node that were refused since the last heartbeat."""


# Start of the lines that are events; every other line is log.
EVENT_PREFIX = b'{"parlab":'
EVENT_LINE_LIMIT = 4_096
"""Bytes. Events are shorter, so that one write to a shared pipe is atomic; a longer line is log."""
