"""The first whole path through parlab, as a newcomer walks it: from `make demo` to a scaling figure."""

from __future__ import annotations

import re
import sqlite3

import pytest
from playwright.sync_api import Page, expect

from .conftest import TRAINING_MS, Demo, screenshots

RUNS = 9
"""Points of the sweep: three schedules, three micro batch sizes."""
MARK = re.compile(r"(\S+) \N{MIDDLE DOT} mb (\d+): ([\d.]+)")


def drawn_throughputs(page: Page) -> dict[tuple[str, float], float]:
    """Read the marks of the throughput against micro batch size: (schedule, micro batch size) -> samples/s."""
    titles = page.locator('[data-panel="throughput"] svg.fig [data-run] title').all_text_contents()
    marks = [match for title in titles if (match := MARK.match(title))]
    return {(match[1], float(match[2])): float(match[3]) for match in marks}


def stored_throughputs(demo: Demo, experiment: str) -> dict[tuple[str, float], float]:
    """Read from the database: (schedule, micro batch size) -> samples/s."""
    query = """
        SELECT json_extract(resolved, '$.parallel.schedule'), json_extract(resolved, '$.train.micro_batch_size'),
               samples_per_s
        FROM lab_run JOIN lab_experiment ON lab_experiment.id = experiment_id
        WHERE slug = ? AND lab_run.state = 'finished'
    """
    with sqlite3.connect(demo.database) as database:
        return {(schedule, float(size)): value for schedule, size, value in database.execute(query, [experiment])}


@pytest.mark.slow
def test_a_sweep_is_edited_launched_watched_and_becomes_a_scaling_figure(page: Page, demo: Demo) -> None:
    page.goto("/experiments/")
    page.get_by_role("link", name="Pipeline schedules on this machine").click()
    screenshots(page, "experiment-before")
    page.get_by_role("link", name="Add runs").click()
    screenshots(page, "config-form")
    page.get_by_label("Iterations", exact=True).fill("6")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**/experiments/pipeline-schedules-on-this-machine/")

    page.locator("#launch").click()
    expect(page.locator('.rl[data-state="running"]').first).to_be_visible()
    running = page.locator('.rl[data-state="running"]').first.get_attribute("data-run")
    page.goto(f"/experiments/pipeline-schedules-on-this-machine/runs/{running}/")
    screenshots(page, "run-live")
    page.goto("/experiments/pipeline-schedules-on-this-machine/")
    expect(page.locator('.rl[data-state="finished"]')).to_have_count(RUNS, timeout=TRAINING_MS)

    page.reload()
    drawn = drawn_throughputs(page)
    stored = stored_throughputs(demo, "pipeline-schedules-on-this-machine")
    assert len(stored) == RUNS
    assert drawn == pytest.approx(stored)
    for panel in ("throughput", "memory", "phases", "steps"):
        expect(page.locator(f'[data-panel="{panel}"] svg.fig [data-run]')).to_have_count(RUNS)
    screenshots(page, "experiment-finished")

    page.goto("/experiments/pipeline-schedules-on-this-machine/runs/1/")
    page.wait_for_selector('[data-figure="step-time"][data-drawn="1"]')
    screenshots(page, "run-finished")


@pytest.mark.slow
def test_a_run_is_cancelled_and_started_again_from_its_page(page: Page, demo: Demo) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/experiments/pipeline-schedules-on-this-machine/runs/1/")
    page.locator("#relaunch").click()
    running = page.locator('[data-state="running"]').first
    expect(running).to_be_visible()
    page.locator("#cancel").click()
    expect(page.locator('[data-state="cancelled"]').first).to_be_visible()
    # Left running: the demo must end it when it is stopped (see the fixture).
    page.locator("#relaunch").click()
    expect(running).to_be_visible()


def test_the_published_figures_are_shown_with_the_same_pages(page: Page, demo: Demo) -> None:
    page.goto("/experiments/")
    page.get_by_role("link", name="GPT-3 small on three nodes").click()
    expect(page.locator('[data-panel="throughput"] svg.fig [data-run]')).to_have_count(24)
    page.get_by_role("link", name="Table", exact=True).click()
    for cell in ("6.64", "9.08", "6.54", "11.2"):
        expect(page.get_by_role("cell", name=cell).first).to_be_visible()
    expect(page.get_by_text("Fail due to running out of DRAM").first).to_be_visible()
    screenshots(page, "published")
    page.goto("/")
    screenshots(page, "experiments")
    page.goto("/nodes/")
    screenshots(page, "nodes")
