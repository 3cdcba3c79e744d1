"""A figure dressed for paper: all that a page adds around it becomes part of it."""

from __future__ import annotations

from typing import Any

from parlab.charts.picture import WIDTH, picture_of


def figure(names: list[str], **layout: Any) -> dict[str, Any]:
    data = [{"type": "scatter", "name": name, "x": [1], "y": [1]} for name in names]
    return {"data": data, "layout": {"title": {"text": "Throughput"}, "xaxis": {"title": {"text": "GPUs"}}, **layout}}


def test_a_long_legend_takes_its_room_from_a_higher_picture() -> None:
    short, long = picture_of(figure(["gpipe", "1f1b"])), picture_of(figure([f"schedule {n} " * 4 for n in range(20)]))

    assert long.layout["margin"]["t"] > short.layout["margin"]["t"]
    assert long.height - long.layout["margin"]["t"] == short.height - short.layout["margin"]["t"]
    assert short.width == long.width == WIDTH


def test_title_and_axes_stay_and_get_the_colours_of_paper() -> None:
    source = figure(["gpipe"], showlegend=False)

    dressed = picture_of(source)

    assert dressed.layout["title"]["text"] == "Throughput"
    assert dressed.layout["xaxis"]["title"]["text"] == "GPUs"
    assert dressed.layout["xaxis"]["color"].startswith("#")
    assert dressed.layout["paper_bgcolor"] == "#ffffff"
    assert "paper_bgcolor" not in source["layout"]  # what was frozen stays as it is
