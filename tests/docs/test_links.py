"""Links of the documentation lead somewhere, and so do the pages that code and templates name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PROJECT, pages

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.M)
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
REFERENCE = re.compile(r"^::: ([\w.]+)$", re.M)
NAMED_PAGE = re.compile(r"\bdocs/[\w/-]+\.(?:md|schema\.json)")
SOURCE_FILE = re.compile(r"(?<=`)[a-z_]+(?:/[\w.-]+)*/\w+\.(?:py|js|css)(?=`)")
OTHERS = {"docs/performance.md"}
"""Pages of other projects that comments cite."""


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings as GitHub and the site name them, and the objects of a reference."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(text)]
    return {title.strip().replace(" ", "-") for title in titles} | set(REFERENCE.findall(text))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_has_a_target(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in LINK.findall(text):
        address, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / address).resolve() if address else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_code_and_templates_name_existing_pages() -> None:
    files = [
        path
        for folder in ("parlab", "runners", "templates", "tests")
        for path in (PROJECT / folder).rglob("*")
        if path.suffix in (".py", ".html", ".txt", ".js") and path != Path(__file__)
    ]
    named = {
        (page, str(path.relative_to(PROJECT)))
        for path in files
        for page in NAMED_PAGE.findall(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert len({page for page, _ in named}) > 10
    assert [where for where in sorted(named) if where[0] not in OTHERS and not (PROJECT / where[0]).is_file()] == []


def test_the_index_lists_every_page() -> None:
    listed = set(LINK.findall((DOCS / "index.md").read_text()))
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    assert written - listed == set()


def test_the_reference_names_objects_that_exist() -> None:
    names = REFERENCE.findall((DOCS / "use" / "api.md").read_text())
    assert len(names) > 5
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name


def test_the_documentation_names_existing_source_files() -> None:
    folders = [PROJECT, PROJECT / "parlab", PROJECT / "parlab" / "lab", PROJECT / "runners"]
    named = {(page.name, path) for page in pages() for path in SOURCE_FILE.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 40
    assert [where for where in sorted(named) if not any((folder / where[1]).is_file() for folder in folders)] == []
