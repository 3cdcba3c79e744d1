"""How a run ended: reads the output as it passes, and puts the exit code into words. Pure."""

from __future__ import annotations

import json
import re
import signal
from typing import Any, NamedTuple

from parlab.client.stopping import CHECKPOINTED
from runners.supervisor.deaths import Death, dead_rank, find_deaths
from runners.wire.protocol import EVENT_PREFIX, OOM_EXIT_CODE, RunState

TAIL_BYTES = 256 << 10
MAX_REASON_CHARS = 500

# A line that begins like an event and may be one of those that tell how a run ends.
_EVIDENCE = re.compile(rb"^" + re.escape(EVENT_PREFIX) + rb'[^\n]*"(?:oom|error|refused|death)"[^\n]*', re.MULTILINE)
_EVIDENCE_WORDS = (b'"oom"', b'"error"', b'"refused"', b'"death"')
MAX_EVENTS = 64
"""Ranks whose errors are kept, and problems of a refused configuration."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::|\s*$)")
_TRACEBACK = "Traceback (most recent call last):"
# torch marks what a rank raises with the rank.
_RANK_PREFIX = re.compile(r"^\[rank(\d+)\]: ?")
# ProcessGroupNCCL of torch 2 prints this before it aborts a rank; Python does not receive it as an exception.
_NCCL_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\([^\n]*?OpType=(\w+)[^\n]*?Timeout\(ms\)=(\d+)"
)
# torch and torchrun print these if another program has the port of the rendezvous, or if its address does not answer.
_PORT_TAKEN = re.compile(r"failed to listen on any local network address\. port: (\d+)[^\n]*EADDRINUSE")
_UNREACHABLE = re.compile(r"client socket has timed out after \d+ ?ms while trying to connect to \(([^,)]+), (\d+)\)")
_PEER_GONE = re.compile(
    r"connection (?:was )?(?:likely )?(?:closed|reset|refused)|broken pipe|socket (?:closed|error)|remote process"
    r"|failed to recv, got 0 bytes|Rendezvous(?:Closed|Connection)Error",
    re.IGNORECASE,
)
_TORCHRUNS_OWN = ("ChildFailedError", "torch.distributed.elastic.multiprocessing.errors")


class Verdict(NamedTuple):
    """The final state, one sentence for people, and the traceback that explains it."""

    state: RunState
    reason: str
    traceback: str = ""
    rank: int | None = None
    """Global number of the rank that failed first, if known."""
    is_consequence: bool = False
    """A rank of another node went away, or kept this one waiting: the cause is there."""


class Evidence:
    """Evidence in the output about the end of a run, collected in constant memory."""

    def __init__(self, host: str = "") -> None:
        """`host` replaces localhost in the messages of launchers."""
        self._host = host
        self._tail = bytearray()
        self._oom: dict[str, Any] | None = None
        self._errors: dict[Any, dict[str, Any]] = {}
        self._refused: list[str] = []
        self._deaths: list[Death] = []
        self._elsewhere = ""

    def see(self, output: bytes) -> None:
        """Read a piece of output that ends at a line end."""
        self._tail += output
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        # Few pieces of output contain these: the others are skipped quickly.
        if not any(text in output for text in _EVIDENCE_WORDS):
            return
        for match in _EVIDENCE.finditer(output):
            try:
                event = json.loads(match[0])
            except (ValueError, RecursionError):
                continue
            self._note(event)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep the first event of each type: the rank that fails first is the cause, the others are consequences."""
        kind, rank = event.get("event"), event.get("rank")
        if kind == "oom" and self._oom is None:
            self._oom = event
        elif kind == "error" and isinstance(rank, int) and rank < 0 and isinstance(event.get("reason"), str):
            self._elsewhere = event["reason"]  # the launcher of all nodes ended the ranks of this one
        elif kind == "error" and isinstance(event.get("traceback"), str) and len(self._errors) < MAX_EVENTS:
            self._errors.setdefault(rank if isinstance(rank, int) else None, event)
        elif kind == "refused" and len(self._refused) < MAX_EVENTS:
            problem = ": ".join(str(event[name]) for name in ("field", "message") if event.get(name))
            if problem not in self._refused:  # every rank may print it
                self._refused.append(problem)
        elif kind == "death" and len(self._deaths) < MAX_EVENTS and isinstance(rank, int):
            code = event.get("code")
            if isinstance(code, int):
                self._deaths.append(Death(rank, str(event.get("host", "")), code))

    def verdict(self, exit_code: int) -> Verdict:
        """Return how a run ended that was not stopped."""
        if exit_code == 0:
            return Verdict(RunState.FINISHED, "")
        tail = self.log_tail()
        deaths = [self._with_host(death) for death in self._deaths or find_deaths(tail)]
        first = deaths[0] if deaths else Death(None, "", exit_code)
        if self.has_checkpointed(exit_code):
            return Verdict(
                RunState.CHECKPOINTED, f"its ranks wrote a checkpoint and ended with exit code {CHECKPOINTED}"
            )
        if self._oom is not None or OOM_EXIT_CODE in (exit_code, first.code):
            rank = (self._oom or {}).get("rank", first.rank)
            return Verdict(RunState.OOM, _oom_reason(self._oom or {}, first.rank), "", _rank_or_node(rank))
        if self._refused:
            return Verdict(RunState.FAILED, shorten("; ".join(self._refused)))
        if self._elsewhere and not self._has_own_cause(deaths):
            return Verdict(RunState.FAILED, shorten(self._elsewhere), is_consequence=True)
        if first.code == -signal.SIGABRT and (waited := _NCCL_TIMEOUT.search(tail)):
            reason = _waited_reason(first.rank, waited[1], int(waited[2]) / 1e3)
            return Verdict(RunState.FAILED, reason, "", first.rank, is_consequence=True)
        are_consequences = bool(self._errors) and all("reason" in event for event in self._errors.values())
        dead = dead_rank(deaths, set(self._errors), only_consequences=are_consequences)
        if dead is not None:
            # The errors of the other ranks are consequences, but show where they were.
            return Verdict(RunState.FAILED, shorten(_code_reason(dead)), self._error_of_others(), dead.rank)
        return self._failure(tail, first, exit_code)

    def has_checkpointed(self, exit_code: int) -> bool:
        """Return whether all ranks that ended by themselves wrote a checkpoint, as far as the launcher reports them."""
        deaths = self._deaths or find_deaths(self.log_tail())
        codes = {death.code for death in deaths} - {-signal.SIGTERM}
        return codes == {CHECKPOINTED} if codes else exit_code == CHECKPOINTED

    def log_tail(self) -> str:
        """Return the last output without events: those of other ranks may be between the lines of a traceback."""
        lines = self._tail[-TAIL_BYTES:].splitlines(keepends=True)
        return b"".join(line for line in lines if not line.startswith(EVENT_PREFIX)).decode(errors="replace")

    @property
    def has_failure(self) -> bool:
        """Whether a rank has failed already, so that the run is about to end."""
        return bool(self._oom or self._errors or self._refused or self._deaths or self._elsewhere)

    def _has_own_cause(self, deaths: list[Death]) -> bool:
        """Return whether a rank of this node failed by itself, whatever the launcher of all nodes says."""
        has_error = any("reason" not in error for error in self._errors.values())
        return has_error or dead_rank(deaths, set(self._errors), only_consequences=False) is not None

    def _with_host(self, death: Death) -> Death:
        return death._replace(host=self._host) if death.host in ("", "localhost", "127.0.0.1") else death

    def _failure(self, tail: str, first: Death, exit_code: int) -> Verdict:
        if self._errors:
            # Prefer a rank that failed by itself to one that lost its connection or timed out.
            event = min(self._errors.values(), key=lambda error: "reason" in error)
            traceback, rank = event["traceback"].strip(), event.get("rank")
            if isinstance(event.get("reason"), str):
                reason = shorten(event["reason"])
                return Verdict(RunState.FAILED, reason, traceback, _rank_or_node(rank), is_consequence=True)
            if isinstance(rank, int) and rank < 0:  # an error of the node itself, to which the exit code adds nothing
                return Verdict(RunState.FAILED, shorten(_last_line(traceback)), traceback)
            where = f" on rank {rank}" if isinstance(rank, int) else ""
        else:
            rank, traceback = last_traceback(tail, first.rank)
            where = f" on rank {rank}" if rank is not None else ""
        if not traceback:
            return Verdict(RunState.FAILED, shorten(_code_reason(first)), "", first.rank)
        last = _last_line(traceback)
        if reason := _rendezvous_reason(last):
            return Verdict(RunState.FAILED, reason, traceback)
        is_consequence = bool(_PEER_GONE.search(last))
        reason = shorten(f"{last}{where} (exit code {exit_code})")
        return Verdict(RunState.FAILED, reason, traceback, _rank_or_node(rank), is_consequence)

    def _error_of_others(self) -> str:
        return next((event["traceback"].strip() for event in self._errors.values()), "")


def last_traceback(text: str, rank: int | None = None) -> tuple[int | None, str]:
    """Return the last traceback that is not torchrun's own: (rank, traceback) or (rank, "")."""
    end = len(text)
    while (begin := text.rfind(_TRACEBACK, 0, end)) >= 0:
        line_start = text.rfind("\n", 0, begin) + 1
        lines = text[line_start:end].splitlines()
        prefix = _RANK_PREFIX.match(lines[0])
        if prefix:
            lines = [line[prefix.end() :] for line in lines if line.startswith(prefix[0].rstrip())]
        block = "\n".join(_block(lines))
        if not any(name in block for name in _TORCHRUNS_OWN):
            return (int(prefix[1]) if prefix else rank), block
        end = line_start
    return rank, ""


def _block(lines: list[str]) -> list[str]:
    """Return a traceback's first line, its indented frames, and its exception.

    Lines of other ranks that share the pipe may be between these.
    """
    last = [index for index, line in enumerate(lines) if index and line and not line[0].isspace()]
    if not last:
        return lines
    end = next((index for index in last if _EXCEPTION.match(lines[index])), last[0])
    return [line for index, line in enumerate(lines[: end + 1]) if index in (0, end) or index not in last]


def _last_line(traceback: str) -> str:
    lines = [line for line in traceback.splitlines() if line.strip()]
    # The message of an exception may have several lines: the first one names the exception.
    for index, line in enumerate(lines):
        if index and not line[0].isspace() and lines[index - 1][0].isspace():
            last = line
            break
    else:
        last = lines[-1] if lines else "unknown error"
    return last.strip()


def _oom_reason(event: dict[str, Any], rank: int | None) -> str:
    who = event.get("rank", rank)
    parts = ["out of memory" + (f" on rank {who}" if who is not None else "")]
    if event.get("phase"):
        parts.append(f"in {event['phase']}")
    sizes = [
        f"{label} {_mib(event[field])}"
        for field, label in (("requested_bytes", "requested"), ("free_bytes", "free"), ("total_bytes", "of"))
        if isinstance(event.get(field), int | float)
    ]
    return shorten(" ".join(parts) + (f": {', '.join(sizes)}" if sizes else ""))


def _rank_or_node(rank: Any) -> int | None:
    """Return a rank of an event; None for the node itself, which events give as a negative number."""
    return rank if isinstance(rank, int) and rank >= 0 else None


def _rendezvous_reason(error: str) -> str:
    """Return why the nodes of a run did not meet, and the remedy; empty for any other error."""
    if taken := _PORT_TAKEN.search(error):
        return (
            f"port {taken[1]} of the rendezvous was taken by another program between prepare and start;"
            " start the run again, or stop that program ('ss -ltnp' shows it)"
        )
    if unreachable := _UNREACHABLE.search(error):
        return (
            f"the first node of the run did not answer at {unreachable[1]}, port {unreachable[2]};"
            " open the ports of the firewall between the nodes, or set cluster.interface to a network between them"
        )
    return ""


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _waited_reason(rank: int | None, operation: str, limit_s: float) -> str:
    who = "a rank" if rank is None else f"rank {rank}"
    return (
        f"{who} waited longer than {limit_s:g} s for another rank, in NCCL's {operation}; see in the log which rank"
        " stopped, or raise launcher.collective_timeout_s"
    )


def _code_reason(death: Death) -> str:
    place = [f"rank {death.rank}"] if death.rank is not None else []
    place += [f"host {death.host}"] if death.host else []
    where = f" on {' of '.join(place)}" if place else ""
    if death.code >= 0:
        return f"exit code {death.code}{where} and no traceback; see the end of the output"
    try:
        name = signal.Signals(-death.code).name
    except ValueError:
        name = "unknown"
    reason = f"killed by signal {-death.code} ({name}){where}"
    if -death.code == signal.SIGKILL:
        reason += "; the kernel does this when the machine runs out of memory (see dmesg); use less memory"
    elif -death.code in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
        reason += "; a library crashed: see the output for its stack, if the engine could write it"
    return reason


def shorten(text: str) -> str:
    """Shorten a reason to MAX_REASON_CHARS."""
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 3] + "..."
