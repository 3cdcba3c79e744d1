"""Maps of devices, bandwidths over message size, and searches for capacity."""

from __future__ import annotations

import pytest

from parlab.charts.sweeps import bandwidth, capacity, device_map
from parlab.charts.sweeps.bandwidth import Message
from parlab.charts.sweeps.capacity import Search, Trial


def grid(stages: int, shards: int, devices: int) -> list[list[str]]:
    return [[f"GPU:{stage * devices // stages}" for _ in range(shards)] for stage in range(stages)]


def message(size: int, algbw: float, **more: object) -> Message:
    given: dict[str, object] = {"run": 1, "operation": "all-reduce", "ranks": 4, "busbw": 1.5 * algbw}
    return Message(**(given | {"size": size, "algbw": algbw} | more))  # type: ignore[arg-type]


def trial(number: int, value: int, fits: bool, memory: float | None = 2**30) -> Trial:
    return Trial(number, value, fits, 3.5, memory, value * 1_000_000 if fits else None, 100.0)


def search(trials: list[Trial], **more: object) -> Search:
    given: dict[str, object] = {"find": "num_layers", "at_most": 64, "limit_bytes": 2.0**31, "is_done": True}
    return Search(trials=trials, **(given | more))  # type: ignore[arg-type]


def test_a_map_has_a_cell_per_shard_in_the_colour_and_with_the_name_of_its_device() -> None:
    drawn = device_map.draw(grid(8, 4, 8))
    assert drawn is not None
    assert len(drawn.cells) == 32
    assert len({cell.colour for cell in drawn.cells}) == 8
    assert {cell.label for cell in drawn.cells if cell.device == "GPU:3"} == {"GPU:3"}
    assert drawn.cells[13].title == "stage 3, shard 1: GPU:3"
    assert [device.shards for device in drawn.devices] == [4] * 8
    assert drawn.caption == (
        "8 stages \N{MULTIPLICATION SIGN} 4 shards on 8 devices, 4 shards on each. 7 boundaries of 7 between"
        " stages change devices."
    )
    assert drawn.table.rows[-1] == [7, 3, "GPU:7"]


def test_a_large_map_fits_a_page_and_its_narrow_cells_hold_the_devices_number() -> None:
    drawn = device_map.draw(grid(64, 16, 64))
    assert drawn is not None
    assert drawn.width < 1500
    assert drawn.height < 400
    assert len({device.colour for device in drawn.devices}) == 64
    assert drawn.cells[-1].label == "63"
    assert drawn.cells[-1].title == "stage 63, shard 15: GPU:63"


def test_devices_are_listed_by_number_and_uneven_maps_name_the_fullest() -> None:
    drawn = device_map.draw([["CPU:10", "CPU:2"], ["CPU:2", "CPU:2"]])
    assert drawn is not None
    assert [device.name for device in drawn.devices] == ["CPU:2", "CPU:10"]
    assert "1 to 3 shards on each; most on CPU:2" in drawn.caption


@pytest.mark.parametrize("empty", [[], [[]]])
def test_no_map_is_drawn_of_nothing(empty: list[list[str]]) -> None:
    assert device_map.draw(empty) is None


def test_labels_can_be_read_on_every_colour() -> None:
    drawn = device_map.draw(grid(64, 1, 64))
    named = device_map.draw(grid(8, 1, 8))
    assert drawn is not None
    assert named is not None
    for device in [*drawn.devices, *named.devices]:
        assert _contrast(device.colour, device.ink) >= 4.5, device


def _contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_bandwidths_are_in_nccl_tests_units_with_the_first_trial_apart() -> None:
    drawing = bandwidth.figure([message(2048, 2e9), message(1024, 1e9, time_s=1e-6, first_time_s=4e-6)])
    assert drawing.figure is not None
    busbw, algbw, first = drawing.figure.data
    assert list(busbw.x) == [1024, 2048]
    assert list(busbw.y) == [1.5, 3.0]
    assert list(algbw.y) == [1.0, 2.0]
    assert first.y[0] == pytest.approx(0.256)
    assert drawing.figure.layout.xaxis.type == "log"
    assert list(drawing.figure.layout.xaxis.ticktext) == [
        "1.00\N{NARROW NO-BREAK SPACE}KiB",
        "2.00\N{NARROW NO-BREAK SPACE}KiB",
    ]
    assert "all-reduce between 4 ranks reaches a busbw of 3.00 GB/s (24.0 Gbit/s)" in drawing.caption


def test_the_caption_warns_of_wrong_values() -> None:
    assert "7 elements had WRONG values" in bandwidth.caption([message(1024, 1e9, wrong=7)])


def test_of_many_operations_only_the_bus_bandwidth_is_shown_at_first() -> None:
    names = ["all-reduce", "all-gather", "reduce-scatter", "point-to-point"]
    drawing = bandwidth.figure([message(1024, 1e9, operation=name) for name in names])
    assert drawing.figure is not None
    shown = [trace.name for trace in drawing.figure.data if trace.visible is True]
    assert shown == [f"{name}, 4 ranks: busbw" for name in names]


def test_the_answer_of_a_search_names_both_sides_of_the_limit() -> None:
    result = search([trial(1, 8, True), trial(2, 16, False, None), trial(3, 12, True), trial(4, 14, False)])
    space = "\N{NARROW NO-BREAK SPACE}"
    assert capacity.answer(result) == (
        f"12 layers (12.0{space}M{space}parameters) fit with 2.00{space}GiB each, 14 do not."
    )
    drawing = capacity.figure(result)
    assert drawing.figure is not None
    trains, failed = drawing.figure.data
    assert (list(trains.x), list(trains.y)) == ([8, 12], [1.0, 1.0])
    assert (list(failed.x), list(failed.y)) == ([16, 14], [2.0, 1.0])
    assert drawing.table.rows[1] == [2, 16, False, None, None, 100.0, 3.5]


@pytest.mark.parametrize(
    ("trials", "more", "sentence"),
    [
        ([], {}, "No trial has run yet."),
        ([trial(1, 1, False)], {}, "Nothing fits with"),
        ([trial(1, 64, True)], {}, "At least 64 layers"),
        ([trial(1, 8, True)], {"is_done": False}, "so far; the search continues."),
        ([trial(1, 8, True)], {"is_done": False, "is_cut": True}, "the search ended before it found the limit."),
        ([trial(1, 1, True)], {"at_most": 1, "find": "micro_batch_size"}, "1 sequence in a micro batch"),
        (
            [trial(1, 2, False), trial(2, 3, True)],
            {"find": "processes", "per_node": 2},
            "GiB each, 2 nodes of 2; 2 run out of memory.",
        ),
    ],
)
def test_every_end_of_a_search_has_its_sentence(trials: list[Trial], more: dict[str, object], sentence: str) -> None:
    assert sentence in capacity.answer(search(trials, **more))
