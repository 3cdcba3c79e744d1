"""The job of Slurm, or the pod of Kubernetes, that executed an attempt: its facts, and what was submitted."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class _System(NamedTuple):
    title: str
    script: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[tuple[str, str], ...] = ()
    """What holds for all of its jobs."""


_SHIPPED = ("shipped_by", "Output shipped by")
_SYSTEMS = {
    "slurm": _System(
        "Slurm job",
        "Batch script",
        (("job", "Job"), ("partition", "Partition"), ("nodes", "Nodes"), _SHIPPED),
        (
            ("Warning", "Slurm may send its signal up to a minute before launcher.warn_before_s"),
            ("Time to end", "KillWait of Slurm at its limit or a cancel, GraceTime at a preemption"),
        ),
    ),
    "kubernetes": _System(
        "Kubernetes",
        "Manifest",
        (("pod", "Pod"), ("namespace", "Namespace"), ("node", "Node"), ("image", "Image"), _SHIPPED),
    ),
}
"""Name in the environment of an attempt -> its titles, and those of its facts."""


class BatchJob(NamedTuple):
    """Texts about a job."""

    title: str
    facts: list[tuple[str, str]]
    script_title: str
    script: str


def batch_job(environment: Mapping[str, Any]) -> BatchJob | None:
    """Return the job from the environment of an attempt; None if it was no job."""
    name, job = _job_of(environment)
    if not job:
        return None
    system = _SYSTEMS[name]
    facts = [(title, str(job[fact])) for fact, title in system.facts if job.get(fact)]
    return BatchJob(system.title, [*facts, *system.notes], system.script, str(job.get("script") or ""))


def without_job(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment without what is shown about its job."""
    name, _ = _job_of(environment)
    return {**environment, name: {}} if name else dict(environment)


def _job_of(environment: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the system and the job that parlab has submitted; a script that others started has a pod, too."""
    for name in _SYSTEMS:
        job = environment.get(name)
        if isinstance(job, Mapping) and job.get("shipped_by"):
            return name, job
    return "", {}
