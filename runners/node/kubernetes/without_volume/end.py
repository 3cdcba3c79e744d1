"""The termination message of a pod that shares no volume with its controller: what the server has not taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from runners.node.jobs.state import JobDir
from runners.node.kubernetes.pods import TOLD
from runners.node.kubernetes.without_volume.order import END_FILE
from runners.node.kubernetes.without_volume.posting import end_of, note_of
from runners.supervisor import spool
from runners.wire.protocol import PodNote, Report

MAX_CHARS = 1_000
"""Of the reason; Kubernetes keeps 4 KiB of a termination message."""


class PodEnd(NamedTuple):
    position: int
    """Position up to which the server has stored its spool."""
    left: int
    """Bytes that the server has not taken, and that are gone with the pod."""
    note: PodNote
    exit_code: int = 0
    """Exit code of the supervisor; the container itself ends with 0, or it would be started again."""
    report: Report | None = None
    """The final report, if it is among them."""

    @property
    def is_stored(self) -> bool:
        """Whether the server has the final report."""
        return self.note.is_over(self.position)


def write_end(run: JobDir, left: int, exit_code: int, path: Path = Path(END_FILE)) -> None:
    """Leave the termination message."""
    report = spool.final_report(run.spool) if left else None
    content: dict[str, Any] = {
        "parlab_pod": 1,
        "position": run.acknowledged(),
        "left": left,
        "note": note_of(run, end_of(run)).model_dump(),
        "exit_code": exit_code,
        "report": _shortened(report) if report else None,
    }
    path.write_text(json.dumps(content))


def _shortened(report: Report) -> dict[str, Any]:
    kept = {"state", "at", "exit_code", "reason", "first_failed_rank", "is_consequence", "noticed_at"}
    return report.model_copy(update={"reason": report.reason[:MAX_CHARS]}).model_dump(include=kept)


def read_end(message: str) -> PodEnd | None:
    """Read a termination message; None if it is another one."""
    if not message.startswith(TOLD):
        return None
    try:
        content = json.loads(message)
        report = Report.model_validate(content["report"]) if content["report"] else None
        note = PodNote.model_validate(content["note"])
        return PodEnd(content["position"], content["left"], note, int(content.get("exit_code", 0)), report)
    except (ValueError, KeyError, TypeError):
        return None
