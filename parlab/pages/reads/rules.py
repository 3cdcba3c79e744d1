"""docs/understand/findings.md as HTML: the explanations of the rules."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.token import Token

from parlab.findings import RULES

_WORD = re.compile(r"[^a-z0-9]+")


def rules_page(path: Path) -> dict[str, Any]:
    """Return the rendered explanations, or the titles of the rules if docs/understand/findings.md is not installed."""
    try:
        changed_at = path.stat().st_mtime_ns
    except OSError:
        return {"explained": "", "rules": RULES}
    return {"explained": _rendered(path, changed_at), "rules": {}}


@lru_cache(maxsize=2)
def _rendered(path: Path, _changed_at: int) -> SafeString:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(path.read_text(encoding="utf-8"))
    anchors: set[str] = set()
    for number, token in enumerate(tokens):
        if token.type == "inline":
            name = _rule_of(token) or (_slug(token) if tokens[number - 1].type == "heading_open" else "")
            if name and name not in anchors:
                anchors.add(name)
                tokens[number - 1].attrSet("id", name)
        elif token.type == "table_open":
            token.attrSet("tabindex", "0")  # it scrolls on narrow screens
    # Markup in the text was escaped by the parser (html: False), which also refuses javascript: links.
    rendered = markdown.renderer.render(tokens, markdown.options, {})
    return SafeString(rendered.replace("<pre>", '<pre tabindex="0">'))


def _rule_of(token: Token) -> str:
    """Return the rule at the beginning of a heading, cell or paragraph."""
    first = next((child for child in token.children or [] if child.content.strip()), None)
    if first is None or first.type not in ("code_inline", "text"):
        return ""
    return first.content if first.content in RULES else ""


def _slug(token: Token) -> str:
    return _WORD.sub("-", token.content.lower()).strip("-")
