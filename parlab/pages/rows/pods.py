"""The pods of Kubernetes in which the ranks of a reported run ran."""

from __future__ import annotations

from collections import defaultdict

from parlab.lab.models import Attempt, Stream

MAX_STREAMS = 1_000
MAX_PODS = 64


def pod_rows(attempt: Attempt) -> list[tuple[str, str]]:
    """Return the pods of a run in several pods, each with its ranks and node."""
    streams = Stream.objects.filter(tracked__run=attempt.run_id, attempt_number=attempt.number).order_by("rank", "pk")
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, environment in streams.values_list("rank", "environment")[:MAX_STREAMS]:
        pod = environment.get("kubernetes") if isinstance(environment, dict) else None
        if isinstance(pod, dict) and pod.get("pod"):
            ranks[str(pod["pod"]), str(pod.get("node", ""))].append(rank)
    if len(ranks) < 2:
        return []
    return [_row(*place, numbers) for place, numbers in list(ranks.items())[:MAX_PODS]]


def _row(pod: str, node: str, ranks: list[int]) -> tuple[str, str]:
    title = f"Pod of rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:16]))}"
    return title, f"{pod} on {node}" if node else pod
