"""Hooks of mkdocs: CONTRIBUTING.md stands at the top of the repository, and is a page of the site all the same."""

from __future__ import annotations

import os
import posixpath
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.docs.pages import PROJECT

CONTRIBUTING = "contribute/contributing.md"
LINK = re.compile(r"(?<=\]\()([^)\s:]*CONTRIBUTING\.md)(?=[#)])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add CONTRIBUTING.md, whose links are those of the folder `contribute`, and the mark of the application."""
    text = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files.append(File.generated(config, CONTRIBUTING, content=text.replace("](docs/", "](../")))
    for name in ("favicon.svg", "mark.svg"):
        mark = (PROJECT / "static" / "img" / "favicon.svg").read_text(encoding="utf-8")
        content = mark if name == "favicon.svg" else mark.replace("#0b62c4", "#ffffff")
        files.append(File.generated(config, f"assets/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to CONTRIBUTING.md lead to its page."""
    return LINK.sub(posixpath.relpath(CONTRIBUTING, os.path.dirname(page.file.src_uri) or "."), markdown)
