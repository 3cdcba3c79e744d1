"""How a run ended: reads the output as it passes, and puts the exit code into words. Pure."""

from __future__ import annotations

import json
import re
import signal
from typing import Any, NamedTuple

from runners.protocol import EVENT_PREFIX, OOM_EXIT_CODE, RunState

TAIL_BYTES = 256 << 10
MAX_REASON_CHARS = 500

# A line that begins like an event and may be one of the two that tell how a run ends.
_TELLING = re.compile(rb"^" + re.escape(EVENT_PREFIX) + rb'[^\n]*"(?:oom|error)"[^\n]*', re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
# torch marks what a rank raises with the rank.
_RANK_PREFIX = re.compile(r"^\[rank(\d+)\]: ?")
# torchrun's summary of the rank that failed first.
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_TORCHRUNS_OWN = ("ChildFailedError", "torch.distributed.elastic.multiprocessing.errors")


class Verdict(NamedTuple):
    """The final state, one sentence for people, and the traceback that explains it."""

    state: RunState
    reason: str
    traceback: str = ""


class Evidence:
    """What the output says about how a run ends, gathered in constant memory."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self._oom: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None

    def see(self, output: bytes) -> None:
        """Look at a piece of output that was cut at line ends."""
        self._tail += output
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]
        # Almost no piece of output holds these: most are passed by at the speed of memory.
        if b'"oom"' not in output and b'"error"' not in output:
            return
        for match in _TELLING.finditer(output):
            try:
                event = json.loads(match[0])
            except (ValueError, RecursionError):
                continue
            # Of several ranks the first one tells why; the others fail because it did.
            if event.get("event") == "oom" and self._oom is None:
                self._oom = event
            elif event.get("event") == "error" and self._error is None:
                self._error = event

    def verdict(self, exit_code: int) -> Verdict:
        """Say how a run ended that nobody stopped."""
        if exit_code == 0:
            return Verdict(RunState.FINISHED, "")
        # What other ranks print while one writes its traceback comes between the lines of that.
        lines = self._tail[-TAIL_BYTES:].splitlines(keepends=True)
        tail = b"".join(line for line in lines if not line.startswith(EVENT_PREFIX)).decode(errors="replace")
        summary = _ROOT_CAUSE.search(tail, max(0, tail.rfind("Root Cause")))
        rank, rank_code = (int(summary[1]), int(summary[2])) if summary else (None, exit_code)
        if self._oom is not None or OOM_EXIT_CODE in (exit_code, rank_code):
            return Verdict(RunState.OOM, _oom_reason(self._oom or {}, rank))
        rank, traceback = self._traceback(tail, rank)
        where = f" on rank {rank}" if rank is not None else ""
        if traceback:
            return Verdict(
                RunState.FAILED, _shorten(f"{_last_line(traceback)}{where} (exit code {exit_code})"), traceback
            )
        return Verdict(RunState.FAILED, _shorten(_code_reason(rank_code, where)))

    def _traceback(self, tail: str, rank: int | None) -> tuple[int | None, str]:
        if self._error is not None and isinstance(self._error.get("traceback"), str):
            event_rank = self._error.get("rank")
            return event_rank if isinstance(event_rank, int) else rank, self._error["traceback"].strip()
        return last_traceback(tail, rank)


def last_traceback(text: str, rank: int | None = None) -> tuple[int | None, str]:
    """Find the last traceback that is not torchrun's own: (rank, traceback) or (rank, "")."""
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
    """Keep a traceback's head, its indented frames, and the exception that closes it."""
    for index, line in enumerate(lines[1:], start=1):
        if line and not line[0].isspace():
            return lines[: index + 1]
    return lines


def _last_line(traceback: str) -> str:
    lines = [line for line in traceback.splitlines() if line.strip()]
    # The message of an exception may have lines of its own: its first one names it.
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
        f"{words} {_mib(event[field])}"
        for field, words in (("requested_bytes", "asked for"), ("free_bytes", "free"), ("total_bytes", "of"))
        if isinstance(event.get(field), int | float)
    ]
    return _shorten(" ".join(parts) + (f": {', '.join(sizes)}" if sizes else ""))


def _mib(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _code_reason(code: int, where: str) -> str:
    if code >= 0:
        return f"exit code {code}{where} and no traceback; see the end of the output"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    reason = f"killed by signal {-code} ({name}){where}"
    if -code == signal.SIGKILL:
        reason += (
            "; the kernel does this when the machine's memory runs out (see dmesg): use less memory, or ask who did"
        )
    return reason


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 3] + "..."
