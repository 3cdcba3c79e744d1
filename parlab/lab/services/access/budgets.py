"""Budgets of GPU hours: whose counts in a project, who sets it, who decides beyond it, and what a run counts.

A project without a budget of its own has that of the shared project, and its maintainers decide: otherwise whoever
creates a project would be above all budgets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied

from parlab.lab.models import Project, Role
from parlab.lab.models.access.viewer import shared_project_id, viewer_of
from runners.config.devices import DEVICES

from .rights import viewer_for

MAX_BUDGET = 1e9
_GPU_RESOURCE = re.compile(r"gpu|/mig-")
_UNITS = {"m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def budget_set(*, project: Project, hours: float | None, user: Any) -> Project:
    """Set the GPU hours that need no approval; None: those of the shared project, and in that one any.

    Raises PermissionDenied for anybody but an administrator, and ValueError.
    """
    if not viewer_for(user).sees_all:
        raise PermissionDenied("Budgets of projects are set by administrators.")
    if hours is not None and not 0 <= hours <= MAX_BUDGET:
        raise ValueError(f"approval_gpu_hours {hours:g} is out of range; use 0 to {MAX_BUDGET:g}, or none")
    project.approval_gpu_hours = hours
    project.save(update_fields=["approval_gpu_hours"])
    return project


def budget_holder(project_id: int) -> Project:
    """Return the project whose budget counts in a project: its own, else the shared one."""
    project = Project.objects.get(pk=project_id)
    return project if project.approval_gpu_hours is not None else Project.objects.get(pk=shared_project_id())


def is_above_budget(user: Any, holder: Project) -> bool:
    """Return whether a person needs no approval: who maintains the project of the budget; no service account."""
    # Not the viewer of the request, whose token may belong to another person or reach only one project.
    return viewer_of(user).has_role(Role.MAINTAINER, holder.pk) and not hasattr(user, "service_account")


def may_decide(user: Any, project_id: int) -> bool:
    """Return whether a person decides about launches beyond the budget that counts in a project that they see."""
    return project_id in viewer_for(user).roles and is_above_budget(user, budget_holder(project_id))


def gpu_hours(resolved: Mapping[str, Any], attempt: int = 1) -> float:
    """Return the GPU hours that a run may take at most from an attempt on; infinite for a chain without a time limit.

    All attempts count that may follow by themselves.
    """
    gpus = _gpus_per_node(resolved) * int(resolved["cluster"].get("nodes") or 1)
    return gpus * _limit_s(resolved["launcher"], attempt) / 3600 if gpus else 0.0


def _limit_s(launcher: Mapping[str, Any], attempt: int) -> float:
    if launcher.get("chain"):
        return float(launcher.get("chain_until_s") or math.inf)
    return float(launcher["timeout_s"]) * max(1, int(launcher.get("max_attempts") or 1) - attempt + 1)


def _gpus_per_node(resolved: Mapping[str, Any]) -> int:
    cluster = resolved["cluster"]
    ranks = int(cluster["gpus_per_node"] or 1) if DEVICES[cluster["device"]].may_use_gpus else 0
    slurm, kubernetes = resolved.get("slurm") or {}, resolved.get("kubernetes") or {}
    return max(ranks, _of_slurm(slurm.get("gres") or ""), _of_kubernetes(kubernetes.get("resources") or {}))


def _of_slurm(gres: str) -> int:
    """Return the GPUs of `gpu:a100:4,gpu:2`; a resource without a number is one."""
    counts = [part.rpartition(":")[2] for part in gres.split(",") if part.partition(":")[0] == "gpu"]
    return sum(int(count) if count.isdecimal() else 1 for count in counts)


def _of_kubernetes(resources: Mapping[str, str]) -> int:
    return sum(_quantity(text) for name, text in resources.items() if _GPU_RESOURCE.search(name))


def _quantity(text: str) -> int:
    number = text.rstrip("mkKMGTPi")
    return math.ceil(float(number) * _UNITS.get(text[len(number) : len(number) + 1], 1.0))
