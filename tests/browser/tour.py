"""The pictures of docs/use/tour.md and README.md: `python -m tests.browser.tour` starts a demo and takes them again."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from .conftest import PATIENCE_MS, PROJECT, TRAINING_MS, Demo, copy_of_the_project, start_demo, stop_demo
from .install import find_chromium

PICTURES = PROJECT / "docs" / "use" / "images"
SIZE = {"width": 1200, "height": 750}
README_PICTURE, README_SIZE = "experiment.png", {"width": 1280, "height": 1000}
PUBLISHED = "/experiments/gpt-3-small-on-three-nodes/"
SWEEP = "/experiments/pipeline-schedules-on-this-machine/"
DOUBTED = "/experiments/megatron-bert-345m-on-1-to-128-a100/"


def log_in(page: Page, demo: Demo) -> None:
    page.goto(f"{demo.url}/login/")
    page.get_by_label("Username").fill(demo.user)
    page.get_by_label("Password").fill(demo.password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()


def take_picture(page: Page, path: Path) -> None:
    page.wait_for_timeout(300)
    page.screenshot(path=path)
    # A page has few colours: with a palette the picture is a third as large; rare ones, those of states, stay.
    with Image.open(path) as image:
        with_palette(image.convert("RGB")).save(path, optimize=True)


def with_palette(image: Image.Image) -> Image.Image:
    """Return an image of 256 colours, each one that the image has: the background of a page is not tinted."""
    result = image.quantize(256, method=Image.Quantize.MAXCOVERAGE)
    pairs = zip(result.tobytes(), batched_colours(image.tobytes()), strict=True)
    # The most frequent colour of an entry comes last, and stays.
    entries = dict(pair for pair, _ in sorted(Counter(pairs).items(), key=lambda item: item[1]))
    result.putpalette(b"".join(entries.get(entry, b"\0\0\0") for entry in range(256)))
    return result


def batched_colours(pixels: bytes) -> Iterator[bytes]:
    """Return the three bytes of each pixel."""
    return (pixels[at : at + 3] for at in range(0, len(pixels), 3))


def finished_sweep(page: Page, demo: Demo, directory: Path) -> str:
    """Take the picture of the sweep that the walk has launched, once its runs have finished."""
    page.set_viewport_size(README_SIZE)  # type: ignore[arg-type]
    page.goto(f"{demo.url}{SWEEP}")
    expect(page.locator("#runs .states")).to_contain_text("4 finished", timeout=TRAINING_MS)
    page.reload()
    page.wait_for_load_state("networkidle")
    take_picture(page, directory / README_PICTURE)
    return README_PICTURE


def walk(page: Page, demo: Demo, directory: Path) -> list[str]:
    """Walk the tour from its first to its last step; returns the names of the pictures that it took."""
    directory.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size(SIZE)  # type: ignore[arg-type]
    taken: list[str] = []

    def picture(name: str) -> None:
        expect(page.locator("[data-figure-url]:not([data-drawn])")).to_have_count(0)
        taken.append(f"tour-{len(taken) + 1}-{name}.png")
        take_picture(page, directory / taken[-1])

    page.goto(f"{demo.url}{SWEEP}")
    if page.locator("#launch").count():
        page.locator("#launch").click()
    page.goto(demo.url)
    expect(page.locator("#home")).to_contain_text("Open findings")
    picture("home")
    page.goto(f"{demo.url}/experiments/?show=runs&q=tag:published+gpus%3E%3D16+samples_per_s%3E5&sort=-samples_per_s")
    picture("filter")
    page.goto(f"{demo.url}/sweeps/new/")
    expect(page.get_by_role("heading", name="Points")).to_be_visible()
    picture("builder")
    page.goto(f"{demo.url}{PUBLISHED}")
    picture("experiment")
    page.goto(f"{demo.url}{PUBLISHED}table/?rows=network&columns=train.micro_batch_size")
    picture("figures")
    page.goto(f"{demo.url}/experiments/?show=runs&q=schedule:1f1b,gpipe+origin:published&sort=run")
    for box in page.locator("td.choice input").all()[:4]:
        box.check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare/?runs=*")
    picture("compare")
    page.goto(f"{demo.url}{PUBLISHED}")
    page.locator(".hd .acts summary").click()
    page.get_by_role("button", name="New dashboard").click()
    page.wait_for_url("**/edit/")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url(lambda url: url.rstrip("/").rpartition("/")[2].isdecimal())
    picture("dashboard")
    page.goto(f"{demo.url}{DOUBTED}table/")
    expect(page.locator("[data-figure-url]:not([data-drawn])")).to_have_count(0)
    page.get_by_role("row").filter(has=page.locator("#run-3")).locator("a[data-doubt]").first.click()
    expect(page.get_by_role("dialog", name="Findings about this number")).to_be_visible()
    picture("doubt")
    return taken


def main() -> int:
    """Take all pictures anew."""
    with tempfile.TemporaryDirectory(prefix="parlab-tour-") as directory:
        copy_of_the_project(Path(directory))
        demo = start_demo(Path(directory))
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
                page = browser.new_page()
                page.set_default_timeout(PATIENCE_MS)
                log_in(page, demo)
                for name in [*walk(page, demo, PICTURES), finished_sweep(page, demo, PICTURES)]:
                    sys.stdout.write(f"{name}: {(PICTURES / name).stat().st_size / 1024:.0f} KiB\n")
                browser.close()
        finally:
            stop_demo(demo)
    return 0


if __name__ == "__main__":
    sys.exit(main())
