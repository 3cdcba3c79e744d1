"""Notes of people: Markdown as HTML that holds nothing but plain markup."""

from __future__ import annotations

import nh3
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

# Headings start below those of the page; pictures from elsewhere would be blocked by the policy of pages anyway.
_TAGS = {
    "p", "br", "hr", "em", "strong", "s", "code", "pre", "blockquote", "ul", "ol", "li", "a",
    "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
_ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
LIMIT = 200_000
"""Characters of notes that are read as Markdown; longer ones are shown as they are."""


def notes_html(text: str) -> SafeString:
    """Render notes; scripts, styles, pictures and addresses that run something do not come through."""
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
