"""The place of a process in its launch, and the lines in which it prints metrics, without a process."""

from __future__ import annotations

import json

from parlab.client.launch import RankCount, launch, ranks_line
from parlab.client.lines import LINE_LIMIT, event_lines

RANK = {"WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}


def test_a_script_alone_is_its_whole_launch() -> None:
    place = launch({})
    assert (place.rank, place.world_size, place.local_rank, place.is_shared) == (0, 1, 0, True)


def test_ranks_on_two_nodes_share_a_run_only_if_something_identifies_their_launch() -> None:
    assert not launch({**RANK, "RANK": "3"}).is_shared
    first, second = (launch({**RANK, "RANK": rank, "TORCHELASTIC_RUN_ID": "job"}) for rank in ("3", "11"))
    assert first.is_shared
    assert (first.rank, second.rank, first.run_id) == (3, 11, second.run_id)


def test_the_first_rank_of_a_launch_that_torchrun_starts_again_reports_the_number_of_ranks() -> None:
    again = {**RANK, "RANK": "0", "TORCHELASTIC_RESTART_COUNT": "2"}
    event = json.loads(ranks_line(launch(again), again))
    assert (event["rank"], event["elastic_ranks"], event["elastic_restart"]) == (0, 16, 2)
    other = {**again, "RANK": "3"}
    assert ranks_line(launch(other), other) == b""
    assert ranks_line(launch(RANK), RANK) == b""


def test_the_rank_that_is_the_first_one_now_reports_a_number_that_nvrx_has_changed() -> None:
    first, second = {**RANK, "RANK": "0"}, {**RANK, "RANK": "1"}
    counts = RankCount(first), RankCount(second), RankCount({})
    assert [count.change() for count in counts] == [b"", b"", b""]
    del first["RANK"]
    first["WORLD_SIZE"] = "15"
    second |= {"RANK": "0", "WORLD_SIZE": "15"}
    assert counts[0].change() == b"", "it is gone"
    before, now = (json.loads(line) for line in counts[1].change().splitlines())
    assert (before["elastic_ranks"], now["elastic_ranks"], now["rank"]) == (16, 15, 0)
    assert before["t"] <= now["t"]
    assert counts[1].change() == b""


def test_many_metrics_of_a_step_are_divided_into_lines_within_the_limit() -> None:
    values = {f"{number:0100}": float(number) for number in range(100)}
    lines = list(event_lines(2, 7, values))
    assert max(map(len, lines)) < LINE_LIMIT
    events = [json.loads(line) for line in lines]
    assert {(event["rank"], event["step"]) for event in events} == {(2, 7)}
    assert {name: value for event in events for name, value in event["metrics"].items()} == values
