"""A script's work that keeps a GPU busy, and the events that a run or a script left in its journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runners.supervisor.spool import read_batch

BUSY = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.monotonic() + 6
while time.monotonic() < end:
    for _ in range(50):
        torch.mm(a, a)
    torch.cuda.synchronize()
"""


def events(directory: Path) -> list[dict[str, Any]]:
    """Return all events in a journal."""
    output, position = b"", 0
    while (piece := read_batch(directory, position)).next_position != position:
        output, position = output + piece.output, piece.next_position
    return [json.loads(line) for line in output.splitlines() if line.startswith(b'{"parlab":1')]
