"""The pictures of docs/use/tour.md and README.md: `python -m tests.browser.tour` starts a demo and takes them again.

`python -m tests.browser.tour run home` takes only these. Times in them are those of the machine: leave it alone.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from .conftest import PATIENCE_MS, PROJECT, TRAINING_MS, Demo, copy_of_the_project, start_demo, stop_demo
from .install import find_chromium

PICTURES = PROJECT / "docs" / "use" / "images"
WIDTH, HEIGHT = 1280, 800
HEIGHTS = {"run": 900, "ranks": 900, "experiment": 900}
SCHEDULES = "/experiments/pipeline-schedules-on-this-machine/"
SLOW = "/experiments/slow-on-purpose/"
THREE_NODES = "/experiments/a-pipeline-over-three-nodes/"
TOO_LARGE = "/experiments/hugging-face-trainer-as-a-baseline/"
DOUBTED = "/experiments/megatron-bert-345m-on-1-to-128-a100/"
AMID = re.compile(r"(1[2-9]|[23]\d) / 48")
"""Steps of a run that has begun a while ago."""
FINISHED = '.rl[data-state="finished"]'


def runs(page: Page) -> None:
    page.goto("/experiments/?show=runs&q=tag:published+gpus%3E%3D16+samples_per_s%3E5&sort=-samples_per_s")


def compare(page: Page) -> None:
    page.goto("/experiments/?show=runs&q=schedule:1f1b,gpipe+origin:published&sort=run")
    for box in page.locator("td.choice input").all()[:4]:
        box.check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare/?runs=*")


def builder(page: Page) -> None:
    page.goto("/sweeps/new/")
    expect(page.get_by_role("heading", name="Points", exact=True)).to_be_visible()


def finding(page: Page) -> None:
    page.goto(f"{DOUBTED}table/")
    expect_figures(page)
    page.get_by_role("row").filter(has=page.locator("#run-3")).locator("a[data-doubt]").first.click()
    expect(page.get_by_role("dialog", name="Findings about this number")).to_be_visible()


def palette(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Control+k")
    page.keyboard.type("bert")
    expect(page.locator("#palette [role=option]").first).to_contain_text("BERT")
    expect(page.locator("#palette .pp > *").first).to_be_visible()


def run(page: Page) -> None:
    """Try the advice about a finished run, and wait for the change that it brings."""
    page.goto(SLOW)
    expect(page.locator(FINISHED)).to_have_count(1, timeout=TRAINING_MS)
    page.goto(f"{SLOW}runs/1/")
    page.get_by_role("button", name=re.compile("Try: Recomputation none")).first.click()
    realised = page.get_by_role("link", name=re.compile("Recomputation none.*realised")).first
    expect(realised).to_be_visible(timeout=TRAINING_MS)
    page.goto(f"{SLOW}runs/1/")


def ranks(page: Page) -> None:
    page.goto(THREE_NODES)
    expect(page.locator(FINISHED)).to_have_count(2, timeout=TRAINING_MS)
    page.goto(f"{THREE_NODES}runs/1/ranks/")


def home(page: Page) -> None:
    """Launch the sweep over schedules, and show Home while one of its runs draws its curves."""
    launch(page, SCHEDULES)
    expect(page.locator(FINISHED).nth(1)).to_be_visible(timeout=TRAINING_MS)
    page.goto("/")
    expect(page.locator("#live-runs .lk").nth(1)).to_be_visible(timeout=TRAINING_MS)
    expect(page.locator("#live-runs").get_by_text(AMID)).to_be_visible(timeout=TRAINING_MS)


def experiment(page: Page) -> None:
    page.goto(SCHEDULES)
    expect(page.locator(FINISHED)).to_have_count(9, timeout=TRAINING_MS)
    page.reload()


def inbox(page: Page) -> None:
    """Open the inbox at the run that ran out of memory, which is its newest line."""
    page.goto("/inbox/")
    expect(page.get_by_role("heading", name="At the moment of the failure")).to_be_visible()


# Tracebacks name directories of the machine that takes the pictures.
_RENAME = """(places) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const place of places) texts.currentNode.data = texts.currentNode.data.replaceAll(place, "/opt/parlab");
}"""

ALWAYS: tuple[Callable[[Page], None], ...] = (runs, compare, builder, finding, palette)
"""Pages that a new demo has."""
MEASURED: tuple[Callable[[Page], None], ...] = (run, ranks, home, experiment, inbox)
"""Pages about runs that have to finish first, in the order in which they do."""


def log_in(page: Page, demo: Demo) -> None:
    page.goto("/login/")
    page.get_by_label("Username").fill(demo.user)
    page.get_by_label("Password").fill(demo.password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()


def launch(page: Page, experiment: str) -> None:
    page.goto(experiment)
    page.locator("#launch").click()
    page.wait_for_load_state()


def expect_figures(page: Page) -> None:
    expect(page.locator("[data-figure-url]:not([data-drawn])")).to_have_count(0)


def walk(page: Page, directory: Path, steps: tuple[Callable[[Page], None], ...]) -> list[str]:
    """Take the picture of each step; returns their names."""
    directory.mkdir(parents=True, exist_ok=True)
    return [take_picture(page, directory, step) for step in steps]


def take_picture(page: Page, directory: Path, step: Callable[[Page], None]) -> str:
    name = step.__name__
    page.set_viewport_size({"width": WIDTH, "height": HEIGHTS.get(name, HEIGHT)})
    step(page)
    page.wait_for_load_state("networkidle")
    expect_figures(page)
    page.wait_for_timeout(300)
    page.evaluate(_RENAME, [sys.prefix, str(Path(sys.prefix).resolve())])
    path = directory / f"{name}.png"
    page.screenshot(path=path)
    # A page has few colours: with a palette the picture is a third as large; rare ones, those of states, stay.
    with Image.open(path) as image:
        with_palette(image.convert("RGB")).save(path, optimize=True)
    return path.name


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


LAUNCHED = {run: SLOW, ranks: THREE_NODES, inbox: TOO_LARGE}
"""Experiments that are launched before the first picture."""


def take(page: Page, demo: Demo, names: list[str]) -> None:
    """Take the named pictures, without names all of them."""
    steps = tuple(step for step in ALWAYS + MEASURED if not names or step.__name__ in names)
    log_in(page, demo)
    for step in steps:
        if step in LAUNCHED:
            launch(page, LAUNCHED[step])
    for name in walk(page, PICTURES, steps):
        sys.stdout.write(f"{name}: {(PICTURES / name).stat().st_size / 1024:.0f} KiB\n")


def main() -> int:
    """Take the pictures anew."""
    with tempfile.TemporaryDirectory(prefix="parlab-tour-") as directory:
        copy_of_the_project(Path(directory))
        demo = start_demo(Path(directory))
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
                page = browser.new_page(base_url=demo.url)
                page.set_default_timeout(PATIENCE_MS)
                take(page, demo, sys.argv[1:])
                browser.close()
        finally:
            stop_demo(demo)
    return 0


if __name__ == "__main__":
    sys.exit(main())
