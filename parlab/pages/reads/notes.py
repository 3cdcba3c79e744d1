"""User notes: Markdown rendered as sanitised HTML."""

from __future__ import annotations

import nh3
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

# Headings start below those of the page. Images are left out: the content security policy blocks external ones.
_TAGS = {
    "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "a",
    "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
_ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
LIMIT = 200_000
"""Maximum number of characters rendered as Markdown; longer notes are shown as plain text."""


def notes_html(text: str) -> SafeString:
    """Render notes as HTML without scripts, styles, images and script URLs."""
    if not text.strip():
        return SafeString("")
    if len(text) > LIMIT:
        return SafeString(f"<pre>{nh3.clean_text(text)}</pre>")
    tokens = _MARKDOWN.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    return SafeString(
        nh3.clean(
            html,
            tags=_TAGS,
            attributes=_ATTRIBUTES,
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener nofollow",
        )
    )
