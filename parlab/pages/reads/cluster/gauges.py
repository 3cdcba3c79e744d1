"""What the GPUs of nodes measured last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from parlab.fleet import capacity
from parlab.lab.models import ACTIVE_MEMBER_STATES, Member, Node
from parlab.series import store

GPU, GPU_MEMORY, POWER, HEAT, CLOCK = (
    "gpu_util_pct", "gpu_mem_bytes", "power_watts", "temperature_celsius", "sm_clock_hz",
)  # fmt: skip

Gauges = Mapping[str, float]
"""Values of one GPU by metric."""


def held_by(nodes: Sequence[Node]) -> dict[int, list[Member]]:
    """Return the active members of each node."""
    members = Member.objects.filter(node__in=nodes, state__in=ACTIVE_MEMBER_STATES)
    held: dict[int, list[Member]] = defaultdict(list)
    for member in members.select_related("attempt__run__experiment").order_by("pk"):
        assert member.node_id is not None
        held[member.node_id].append(member)
    return held


def gauges_of(held: Mapping[int, Sequence[Member]]) -> dict[int, dict[int, Gauges]]:
    """Return what was measured last on the GPUs of each node, by their index."""
    members = {member.pk: (node, member) for node, own in held.items() for member in own}
    attempts = {member.attempt_id for _, member in members.values()}
    last = store.latest(attempts, [GPU, GPU_MEMORY, POWER, HEAT, CLOCK]) if attempts else {}
    values: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for (attempt, metric, rank), value in last.items():
        values[attempt, rank][metric] = value
    devices: dict[int, dict[int, Gauges]] = defaultdict(dict)
    for node, member in members.values():
        per_node = capacity.ranks_per_node(member.attempt.run.resolved)
        for place, index in enumerate(_indices(member, per_node)):
            own = values.get((member.attempt_id, member.node_rank * per_node + place))
            if own:
                devices[node][index] = own
    return devices


def _indices(member: Member, per_node: int) -> list[int]:
    """Return the GPUs of a member in the order of its ranks."""
    used = member.environment.get("gpus_used") if isinstance(member.environment, dict) else None
    rows = used if isinstance(used, list) else []
    indices = [row.get("index") for row in rows if isinstance(row, dict)]
    return [int(index) for index in indices if isinstance(index, int)] or list(range(per_node))
