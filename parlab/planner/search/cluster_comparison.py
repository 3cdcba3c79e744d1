"""Compare the requested cluster with another one: the best layout of the same training on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from parlab.planner.calibration.calibration import Calibration
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.hardware import Gpu
from parlab.planner.requests.request import PlanRequest

from .budget import Budget, budget
from .layouts import Layout, search


class OtherCluster(BaseModel):
    """The cluster beside that of a question."""

    model_config = ConfigDict(extra="forbid")

    gpu: str
    nodes: Annotated[int, Field(ge=1, le=4096)]
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8
    network_gbit_s: Annotated[float, Field(gt=0, le=1e6)] | None = None
    price: Annotated[float, Field(ge=0, le=1e6)] | None = None


@dataclass(frozen=True)
class Side:
    """One cluster with its best layout and budget; None if no layout fits."""

    cluster: Cluster
    price: float | None
    layout: Layout | None
    budget: Budget | None


def side(request: PlanRequest, gpu: Gpu, calibration: Calibration | None = None) -> Side:
    """Return the best layout of a training on the cluster of a request."""
    hardware = request.cluster(gpu)
    fitting = search(request.job(), hardware, calibration, request.overlap, 1).fitting
    best = fitting[0] if fitting else None
    total = budget(best.prediction, request.tokens_billion * 1e9, request.price) if best else None
    return Side(hardware, request.price, best, total)


def moved(request: PlanRequest, other: OtherCluster) -> PlanRequest:
    """Return the same training on another cluster, for a search only: its layout may not divide the GPUs there."""
    usual = {"memory_gib": None, "link_gb_s": None, "nvlink_domain": None}
    return request.model_copy(update={**usual, **other.model_dump()})
