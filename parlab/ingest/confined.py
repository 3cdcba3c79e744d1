"""Reads in a child process: what a library parses gets a limit of memory and of processor time.

The child (`confined_child`) imports a function by its name, calls it with plain values, and answers with plain values,
one JSON object per line. It has neither the settings nor the environment of the server.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings

import parlab

MAX_LINE = 512 << 20
_BLOCK = 1 << 20
_TIME = (signal.SIGXCPU, signal.SIGKILL)


class Unreadable(ValueError):
    """The file is damaged, or reading it needs more than the limits; the message says which, and the remedy."""


class Confined:
    """One child. It keeps what its functions have put into their modules until `close`, or while somebody holds it."""

    def __init__(self, seconds: int | None = None) -> None:
        """Start the child; all its calls together get so many seconds of processor time, not PARLAB_READ_SECONDS."""
        self._seconds = min(seconds or settings.READ_SECONDS, settings.READ_SECONDS)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "parlab.ingest.confined_child", str(_memory_bytes()), str(self._seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            bufsize=0,
        )
        self._pending = bytearray()
        self.close = weakref.finalize(self, _end, self._child)

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what `module:function` returns. Raises Unreadable."""
        *_, answer = self.items(function, *arguments)
        return answer

    def items(self, function: str, *arguments: Any) -> Iterator[Any]:
        """Yield what `module:function` returns or yields; the next call waits for the last item. Raises Unreadable."""
        assert self._child.stdin is not None
        request = json.dumps({"function": function, "arguments": arguments}).encode() + b"\n"
        with suppress(BrokenPipeError):  # the answer says how the child ended
            self._child.stdin.write(request)
        while True:
            kind, value = json.loads(self._line())
            if kind == "end":
                return
            if kind != "item":
                raise Unreadable(_no_memory() if kind == "memory" else value)
            yield value

    def _line(self) -> bytes:
        searched = 0
        while (end := self._pending.find(b"\n", searched)) < 0:
            searched = len(self._pending)
            self._pending += self._block()
            if searched > MAX_LINE:
                raise Unreadable(_no_memory())
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def _block(self) -> bytes:
        """Return what the child has written. Raises Unreadable if it has ended, or is silent for too long."""
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], settings.READ_SECONDS)[0]:
            raise Unreadable(_no_time(self._seconds))
        block = os.read(self._child.stdout.fileno(), _BLOCK)
        if not block:
            raise Unreadable(_no_time(self._seconds) if -self._child.wait() in _TIME else _no_memory())
        return block


def confined(function: str, *arguments: Any) -> Any:
    """Return what `module:function` returns in a child of its own. Raises Unreadable."""
    child = Confined()
    try:
        return child.call(function, *arguments)
    finally:
        child.close()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def _memory_bytes() -> int:
    return int(settings.READ_MEMORY_MIB) << 20


def _no_memory() -> str:
    return (
        f"reading it needs more than {settings.READ_MEMORY_MIB} MiB of memory; import a smaller part,"
        " or ask an administrator to raise PARLAB_READ_MEMORY_MIB"
    )


def _no_time(seconds: int) -> str:
    return f"reading it takes more than {seconds} s; import a smaller part"


def _environment() -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(Path(parlab.__file__).parents[1]),
        "PYTHONUTF8": "1",
        "TMPDIR": tempfile.gettempdir(),
        # Each thread of a numerical library reserves address space.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"),
    }
