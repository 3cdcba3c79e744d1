"""A log of an unknown trainer is taught to parlab through the page, by keyboard, and recognised the next time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import screenshots

LINE = "[fit] tick={n} objective={loss:.2f} wall: {ms} ms eaten: {eaten}\n"


def log(path: Path, start: float, line: str = LINE) -> Path:
    path.write_text("".join(line.format(n=n, loss=start - n / 10, ms=100 + n, eaten=512 * n) for n in range(1, 9)))
    return path


def preview(page: Page, path: Path) -> None:
    page.goto("/import/#file")
    page.get_by_label("Files").set_input_files(path)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="Import preview")).to_be_visible()


def assert_guess_beside_samples(page: Page) -> None:
    """Check that the guess is a table of columns under three sample lines of the file."""
    samples = page.get_by_role("region", name="Sample lines").inner_text().splitlines()
    assert len(samples) == 3
    assert all("objective=" in sample for sample in samples)
    columns = page.get_by_role("region", name="Slots of a line").get_by_role("rowheader")
    assert {"tick", "objective", "wall", "eaten"} <= set(columns.all_inner_texts())


def test_a_guess_is_accepted_with_one_click(page: Page, tmp_path: Path) -> None:
    preview(page, log(tmp_path / "plain.log", 3, "[plain] pass={n} badness={loss:.2f} took: {ms} ms used: {eaten}\n"))
    name = page.get_by_label("Name of the format").input_value()
    page.get_by_role("button", name="Accept and read the file").click()
    expect(page.get_by_text(f"Read with the log format {name}, version 1")).to_be_visible()


@pytest.mark.slow
def test_a_guess_is_changed_accepted_and_offered_again(page: Page, tmp_path: Path) -> None:
    preview(page, log(tmp_path / "fit.log", 5))
    expect(page.get_by_role("heading", name="Guessed log format")).to_be_visible()
    assert_guess_beside_samples(page)
    screenshots(page, "import-guess")
    page.get_by_label("Meaning of objective").select_option(label="Loss")
    wall = page.get_by_label("Meaning of wall")
    wall.select_option(label="Step time")
    expect(page.get_by_label("Unit of wall")).to_have_value("time:ms")
    wall.select_option(label="Memory")
    expect(page.get_by_label("Unit of wall")).to_have_value("memory:GiB")
    wall.select_option(label="Step time")
    page.get_by_label("Unit of wall").select_option(label="ms")
    page.get_by_label("Name of the format").fill("tiny-trainer")
    page.get_by_label("Name of the format").press("Enter")
    expect(page.get_by_text("Read with the log format tiny-trainer, version 1")).to_be_visible()
    page.get_by_role("button", name="Import 1 file").click()
    page.get_by_role("link", name="Configuration", exact=True).click()
    expect(page.get_by_role("cell", name="learnt:tiny-trainer")).to_be_visible()

    preview(page, log(tmp_path / "other.log", 4))
    page.get_by_role("button", name="Read with tiny-trainer").click()
    expect(page.get_by_text("Read with the log format tiny-trainer, version 1")).to_be_visible()

    page.goto("/import/formats/")
    screenshots(page, "log-formats")
    page.get_by_role("link", name="tiny-trainer").click()
    screenshots(page, "log-format")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").first.click()
    columns = json.loads(download.value.path().read_text())["columns"]
    assert {column["key"]: column["name"] for column in columns}["objective"] == "loss"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Deleted the log format tiny-trainer")).to_be_visible()
