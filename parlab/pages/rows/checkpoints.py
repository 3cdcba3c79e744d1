"""The checkpoints of an attempt in words."""

from __future__ import annotations

from parlab.charts.format import quantity
from parlab.client.stopping import CHECKPOINT_DIRECTORY
from parlab.lab.models import Attempt


def checkpoint_rows(attempt: Attempt) -> list[tuple[str, str]]:
    """Return names and texts; none for an attempt without a folder for checkpoints."""
    folder = (attempt.environment.get("variables") or {}).get(CHECKPOINT_DIRECTORY)
    if not folder:
        return []
    saved = attempt.summary.get("checkpoints") or {}
    rows = [("Folder", str(folder))]
    if "last_step" in saved:
        rows.append(("Last complete", f"step {saved['last_step']:,}, {quantity(saved['bytes'], 'B')}"))
    if "save_s" in saved:
        blocked = f", of which the training stood still for {quantity(saved['blocked_s'], 's')}"
        rows.append(("Written in", quantity(saved["save_s"], "s") + (blocked if "blocked_s" in saved else "")))
    if "load_s" in saved:
        rows.append(("Loaded in", quantity(saved["load_s"], "s")))
    return rows
