"""The choice of nodes for many runs in a row, without comparing each run with each node.

Nodes that differ only in name and free resources can take the same runs, so each kind of node is compared once with
what a run needs. Of the nodes that remain, those with the most free slots are at the top of a heap, which all runs
with the same needs share.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence

from .capacity import Need, Room, gpu_count

_Entry = tuple[int, str, Room]
"""(-free slots when it was added, name of the node, node): the smallest is the best node."""


class Shortlist:
    """Nodes that can take runs with one need, by what their ranks use; `None` stands for queues of batch systems.

    Within a round nodes only lose resources, so one that does not fit is dropped for good.
    """

    def __init__(self, rooms: Iterable[Room], need: Need) -> None:
        self._need = need
        self._heaps: dict[str | None, list[_Entry]] = {}
        for room in rooms:
            device = None if room.is_queue else room.device_of(need)
            self._heaps.setdefault(device, []).append(_entry(room))
        for heap in self._heaps.values():
            heapq.heapify(heap)

    def best(self) -> list[Room]:
        """Return the nodes with the most free slots that can start a run together; empty if there are not enough."""
        nodes = self._need.nodes
        if queue := self._top(None, 1):
            return [queue[0][2]] * nodes
        tops = (self._top(device, nodes) for device in self._heaps if device is not None)
        enough = [top for top in tops if len(top) == nodes]
        # Of several kinds of device, the one with the best single node.
        return [room for _, _, room in min(enough, key=lambda top: top[0][:2])] if enough else []

    def _top(self, device: str | None, count: int) -> list[_Entry]:
        """Return the best entries of one heap, at most count."""
        heap, top = self._heaps.get(device, []), list[_Entry]()
        while heap and len(top) < count:
            slots, _, room = entry = heapq.heappop(heap)
            if not room.fits(self._need):
                continue
            if -slots == room.slots:
                top.append(entry)
            else:
                heapq.heappush(heap, _entry(room))
        for entry in top:
            heapq.heappush(heap, entry)
        return top


def _entry(room: Room) -> _Entry:
    return -room.slots, room.node.name, room


class Shortlists:
    """The nodes of one round of placement."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self._kinds: dict[str, list[Room]] = {}
        for room in rooms:
            self._kinds.setdefault(_kind(room), []).append(room)
        self._shortlists: dict[Need, Shortlist] = {}

    def best(self, need: Need) -> list[Room]:
        """Return what `capacity.best` does; the nodes must not have gained resources since the last call."""
        if need not in self._shortlists:
            self._shortlists[need] = Shortlist(self._able(need), need)
        return self._shortlists[need].best()

    def _able(self, need: Need) -> list[Room]:
        """Return the nodes that can run it once they are free."""
        of_any_name = need._replace(node_names=())
        able = [room for rooms in self._kinds.values() if rooms[0].could_take(of_any_name) for room in rooms]
        return [room for room in able if not need.node_names or room.node.name in need.node_names]


def _kind(room: Room) -> str:
    """Return everything that decides which runs a node can take, except its name."""
    node = room.node
    gpu = str(node.hardware["gpus"][0]) if gpu_count(node) else ""
    return json.dumps([node.pool, gpu_count(node), gpu, node.left_out, node.abilities], sort_keys=True, default=str)
