"""The counts beside the entries of the main menu."""

from typing import NamedTuple

from parlab.lab.models import Experiment, Node
from parlab.watch.models import Alert


class FrameCounts(NamedTuple):
    """Counts of the main menu."""

    experiments: int = 0
    alerts: int = 0
    """Open alerts that announce a change for the worse."""
    nodes: int = 0
    """Nodes online."""


def frame_counts() -> FrameCounts:
    return FrameCounts(
        Experiment.objects.in_use().count(),
        Alert.objects.open().filter(is_worse=True, leader=None).count(),
        Node.objects.online().count(),
    )
