"""The quick choice of nodes for many runs equals the comparison of each run with each node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.fleet.capacity import Need, Room, best, distinct, reservation
from parlab.fleet.shortlist import Shortlists
from parlab.lab.models import Node, Run

ABILITIES: list[dict[str, object]] = [
    {},
    {"engines": ["pipeline"]},
    {"engines": ["pipeline", "zero"], "launchers": ["torchrun"]},
]


@st.composite
def all_rooms(draw: st.DrawFn) -> list[Room]:
    """Draw a cluster of few kinds of nodes."""
    rooms = []
    for number in range(draw(st.integers(1, 12))):
        gpu, gpus = draw(st.sampled_from(["A", "B"])), draw(st.sampled_from([0, 0, 1, 2, 4]))
        abilities = dict(draw(st.sampled_from(ABILITIES)))
        if draw(st.integers(0, 9)) == 0:
            abilities["kind"] = "slurm"
        node = Node(
            pk=number,
            name=f"n{number:02d}",
            pool=draw(st.sampled_from(["default", "default", "default", "other"])),
            slots=draw(st.integers(0, 4)),
            hardware={"gpus": [{"name": gpu}] * gpus},
            abilities=abilities,
            left_out=draw(st.sampled_from(["", "", "", "slow"])),
        )
        rooms.append(Room(node, draw(st.integers(0, max(node.slots, 0))), draw(st.integers(0, gpus))))
    return rooms


NEEDS = st.builds(
    Need,
    pool=st.sampled_from(["default", "default", "other"]),
    device=st.sampled_from(["cpu", "cuda", "auto"]),
    ranks=st.integers(1, 4),
    nodes=st.integers(1, 4),
    engine=st.sampled_from(["pipeline", "zero"]),
    launcher=st.sampled_from(["torchrun", "mpirun"]),
    argv=st.just(()),
    limit_s=st.sampled_from([30.0, 3600.0]),
    shapes=st.none(),
    node_names=st.sampled_from([(), (), (), ("n00", "n03")]),
    measures_health=st.sampled_from([False, False, False, True]),
)


@pytest.mark.slow
@given(all_rooms(), st.lists(NEEDS, min_size=1, max_size=4), st.data())
def test_runs_get_the_nodes_that_a_comparison_with_every_node_gives(
    rooms: list[Room], needs: list[Need], data: st.DataObject
) -> None:
    shortlists = Shortlists(rooms)
    for need in data.draw(st.lists(st.sampled_from(needs), min_size=1, max_size=25)):
        expected = best(rooms, need)
        assert [room.node.name for room in shortlists.best(need)] == [room.node.name for room in expected]
        if expected:
            for room in distinct(expected):
                room.take(need)
        else:
            gap_s = data.draw(st.sampled_from([0.0, 100.0, 10_000.0]))
            for room in distinct(reservation(rooms, need)):
                room.reserve(need, Run(), gap_s)
