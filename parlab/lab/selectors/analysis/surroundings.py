"""Where runs ran: their nodes, devices and software, which a ranking must mention if they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import F

from parlab.lab.models import Attempt, Run

MAX_READ = 500
"""Maximum number of runs whose environments are read for one page."""


class Surroundings(NamedTuple):
    """Where a run ran; a part is empty if it is unknown."""

    nodes: str = ""
    device: str = ""
    software: str = ""


TITLES = {"nodes": "nodes", "device": "devices", "software": "software"}
"""The parts of `Surroundings` in a sentence."""


def run_surroundings(runs: Sequence[Run]) -> dict[int, Surroundings]:
    """Return where measured runs ran: run id -> surroundings, of at most MAX_READ runs."""
    ids = [run.pk for run in runs if run.origin in (Run.Origin.MEASURED, Run.Origin.REPORTED)][:MAX_READ]
    if not ids:
        return {}
    rows = Attempt.objects.filter(run__in=ids, number=F("run__attempt_number")).exclude(environment={})
    members: dict[int, list[str]] = {}
    for attempt_id, name in rows.order_by("members__node_rank").values_list("pk", "members__node__name"):
        if name and name not in members.setdefault(attempt_id, []):
            members[attempt_id].append(name)
    keys = ("hostname", "cpu_model", "gpus", "torch", "packages__deepspeed", "driver")
    described = rows.order_by().values_list("run_id", "pk", *(f"environment__{key}" for key in keys))
    return {
        run_id: Surroundings(_nodes(members.get(pk, []), host), _device(gpus, cpu), _software(torch, deepspeed, driver))
        for run_id, pk, host, cpu, gpus, torch, deepspeed, driver in described
    }


def _nodes(names: Sequence[str], host: Any) -> str:
    shown = list(names[:3]) or [str(host)] * bool(host)
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _device(gpus: Any, cpu: Any) -> str:
    if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict):
        return str(gpus[0].get("name") or "")
    return str(cpu or "")


def _software(torch: Any, deepspeed: Any, driver: Any) -> str:
    versions = (("torch", torch), ("deepspeed", deepspeed), ("driver", driver))
    return ", ".join(f"{name} {version}" for name, version in versions if version)


def differing(surroundings: Mapping[int, Surroundings], run_ids: Sequence[int]) -> list[str]:
    """Return the parts in which these runs differ, by name; unknown values are not compared."""
    return [
        part
        for part in Surroundings._fields
        if len({value for pk in run_ids if pk in surroundings and (value := getattr(surroundings[pk], part))}) > 1
    ]
