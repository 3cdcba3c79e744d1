"""Scalars that TensorBoard exports: only the name of the file has their tag."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlab.formats.files import read_file

ROWS = "Wall time,Step,Value\n1700000000.5,10,3.5\n1700000010.5,20,3.25\n"
POINTS = "[[1700000000.5, 10, 3.5], [1700000010.5, 20, 3.25]]\n"


@pytest.mark.parametrize(("suffix", "text"), [("csv", ROWS), ("json", POINTS)])
@pytest.mark.parametrize(
    ("tag", "metric"),
    [("train_loss", "loss"), ("grad_norm", "grad_norm"), ("my metric", "my_metric")],
)
def test_the_tag_of_a_file_name_names_its_values(tmp_path: Path, suffix: str, text: str, tag: str, metric: str) -> None:
    path = tmp_path / f"run-version_0-tag-{tag}.{suffix}"
    path.write_text(text)
    (segment,) = read_file(path).segments
    assert segment.records == 2
    assert (segment.metrics[metric].first, segment.metrics[metric].last) == (3.5, 3.25)


def test_a_tag_of_held_out_data_is_a_validation(tmp_path: Path) -> None:
    path = tmp_path / "run-a-tag-val_loss (1).csv"
    path.write_text(ROWS)
    (segment,) = read_file(path).segments
    assert [(entry.iteration, entry.values) for entry in segment.validation] == [
        (10, {"val_loss": 3.5}),
        (20, {"val_loss": 3.25}),
    ]


def test_a_file_without_a_tag_leaves_its_values_unnamed(tmp_path: Path) -> None:
    path = tmp_path / "scalars.csv"
    path.write_text(ROWS)
    (segment,) = read_file(path).segments
    assert set(segment.metrics) == {"value"}
