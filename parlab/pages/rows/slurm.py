"""The job of Slurm that executed an attempt: its facts and its batch script."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_FACTS = (
    ("job", "Job"),
    ("partition", "Partition"),
    ("nodes", "Nodes"),
    ("shipped_by", "Output shipped by"),
)


class SlurmJob(NamedTuple):
    """Texts about a job."""

    facts: list[tuple[str, str]]
    script: str


def slurm_job(environment: Mapping[str, Any]) -> SlurmJob | None:
    """Return the job from the environment of an attempt; None if it was no job."""
    slurm = environment.get("slurm")
    if not isinstance(slurm, Mapping) or not slurm.get("job"):
        return None
    facts = [(title, str(slurm[name])) for name, title in _FACTS if slurm.get(name)]
    return SlurmJob(facts, str(slurm.get("script") or ""))
