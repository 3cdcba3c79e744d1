"""A report as reStructuredText, converted from Markdown block by block. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import indent

from markdown_it.token import Token

from .blocks import (
    CodeBlock,
    Content,
    FigureBlock,
    PartBlock,
    PictureBlock,
    ProblemBlock,
    TableBlock,
    Text,
    ValueBlock,
)
from .directives import Directive
from .document import BLOCK, INLINE, Document
from .source import begins_with_heading, headings, marks_text, part_text, picture_name

_MARKUP = re.compile(r"([\\`*_|])")
_START = re.compile(r"(?m)^([^\w\s`*\\])")
_BLANKS = re.compile(r"[ \t\r\n]+")
_HEAD = re.compile(r"(?m)::$")
_UNDERLINES = "=-~^\"'"
_MARKS = {"em_open": "*", "em_close": "*", "strong_open": "**", "strong_close": "**"}


def rst(document: Document, content: Content, *, title: str, with_pictures: bool) -> str:
    """Return a report as reStructuredText; pictures have the paths of the archive, such as `figures/figure-1.png`."""
    writer = _Writer(content, {id(block): name for name, block in content.figures()}, with_pictures)
    parts = [] if begins_with_heading(document) else [_heading(plain(title), 1)]
    parts += writer.blocks(list(document.tokens))
    if content.findings:
        parts.append(_heading("Findings", 2))
        parts += [
            f"{number}. {marks_text([number]).strip()} **{finding.severity}** {plain(finding.message)}"
            + f" (rule {plain(finding.rule)})"
            + (f" Acknowledged: {plain(finding.acknowledged)}" if finding.acknowledged else "")
            for number, finding in enumerate(content.findings, 1)
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """Return a text on one line with markup and directives such as `.. include::` escaped."""
    return _no_block(_MARKUP.sub(r"\\\1", _BLANKS.sub(" ", text)))


def _no_block(text: str) -> str:
    """Escape line beginnings that start a list, directive or field, and line ends that start a literal block."""
    return _HEAD.sub(":\\:", _START.sub(r"\\\1", text))


def _heading(text: str, level: int) -> str:
    # Wide characters may take two columns: an underline may be too long, but not too short.
    return f"{text}\n{_UNDERLINES[min(level, 6) - 1] * max(2 * len(text), 3)}"


class _Writer:
    """Converts tokens; a list or a quotation is converted separately and then indented."""

    def __init__(self, content: Content, names: dict[int, str], with_pictures: bool) -> None:
        self.content, self.names, self.with_pictures = content, names, with_pictures

    def blocks(self, tokens: Sequence[Token]) -> list[str]:
        parts, at = [], 0
        while at < len(tokens):
            end = _end(tokens, at)
            parts.append(self._block(tokens[at], tokens[at + 1 : end]))
            at = end + 1
        return parts

    def _block(self, token: Token, inner: Sequence[Token]) -> str:
        if token.type == "heading_open":
            return _heading(self._inline(inner[0]), int(token.tag[1]))
        if token.type == "paragraph_open":
            return self._inline(inner[0])
        if token.type in ("bullet_list_open", "ordered_list_open"):
            return self._list(inner, "#." if token.type.startswith("ordered") else "-")
        if token.type == "blockquote_open":
            return indent("\n\n".join(self.blocks(inner)), "    ")
        if token.type in ("fence", "code_block"):
            return _code(token.content.rstrip("\n"), token.info.split(" ")[0])
        if token.type == "hr":
            return "----"
        if token.type == "table_open":
            return self._table_lines(inner)
        return self._directive(token.meta["directive"]) if token.type == BLOCK else ""

    def _list(self, inner: Sequence[Token], mark: str) -> str:
        items, at = [], 0
        while at < len(inner):
            end = _end(inner, at)
            text = "\n\n".join(self.blocks(inner[at + 1 : end]))
            items.append(f"{mark} " + indent(text, " " * (len(mark) + 1)).lstrip())
            at = end + 1
        return "\n".join(items) if all("\n" not in item for item in items) else "\n\n".join(items)

    def _table_lines(self, inner: Sequence[Token]) -> str:
        rows: list[list[str]] = []
        for token in inner:
            if token.type == "tr_open":
                rows.append([])
            if token.type == "inline":
                rows[-1].append(self._inline(token))
        return _list_table(rows, "")

    def _inline(self, token: Token) -> str:
        text, links = "", []
        for child in token.children or []:
            if child.type == "text":
                text += _MARKUP.sub(r"\\\1", child.content)
            elif child.type in ("softbreak", "hardbreak"):
                text += "\n"
            elif child.type == "code_inline":
                text += f"``{child.content.strip()}``"
            elif child.type == "link_open":
                links.append(str(child.attrs.get("href", "")))
                text += "`"
            elif child.type == "link_close":
                text += f" <{links.pop()}>`__"
            elif child.type == "image":
                text += f"`{plain(child.content or 'picture')} <{child.attrs.get('src', '')}>`__"
            elif child.type == INLINE:
                text += self._value(child.meta["directive"])
            else:
                text += _MARKS.get(child.type, "")
        return _no_block(text)

    def _value(self, directive: Directive) -> str:
        block = ProblemBlock(message=directive.problem) if directive.problem else self.content.at(directive.source)
        if isinstance(block, ValueBlock):
            return plain(block.text) + marks_text(block.doubts)
        message = block.message if isinstance(block, ProblemBlock) else "no number"
        return f"**(not shown: {plain(message)})**"

    def _directive(self, directive: Directive) -> str:
        block = ProblemBlock(message=directive.problem) if directive.problem else self.content.at(directive.source)
        if isinstance(block, TableBlock):
            rows = [[_cell_rst(text) for text in row] for row in [headings(block), *block.rows]]
            return "\n\n".join(filter(None, [_list_table(rows, plain(block.title)), plain(block.caption)]))
        if isinstance(block, FigureBlock):
            caption = f"{plain(block.title)}. {plain(block.caption)}{marks_text(block.doubts)}"
            if not self.with_pictures:
                return caption
            return f".. figure:: figures/{self.names[id(block)]}.png\n   :alt: {plain(block.title)}\n\n   {caption}"
        if isinstance(block, CodeBlock):
            return _code(block.text, block.language)
        if isinstance(block, PictureBlock):
            width = f"\n   :width: {block.shown_width}" if block.shown_width else ""
            caption = plain(block.caption) or "picture"
            return f".. image:: figures/{picture_name(block)}{width}\n   :alt: {caption}"
        if isinstance(block, PartBlock):
            return plain(part_text(block))
        message = block.message if isinstance(block, ProblemBlock) else "no number"
        return f".. note:: Not shown: {plain(message)}"


def _end(tokens: Sequence[Token], at: int) -> int:
    """Return the index of the closing token; the same index for a self-closing token."""
    depth: int = tokens[at].nesting
    while depth > 0:
        at += 1
        depth += tokens[at].nesting
    return at


def _code(text: str, language: str) -> str:
    name = language if re.fullmatch(r"[\w+-]+", language) else "text"
    return f".. code-block:: {name}\n\n{indent(text, '    ')}"


def _cell_rst(text: Text) -> str:
    escaped = plain(text.text)
    return (f"**{escaped}**" if text.is_best and escaped else escaped) + marks_text(text.doubts)


def _list_table(rows: Sequence[Sequence[str]], title: str) -> str:
    lines = [f".. list-table:: {title}".rstrip(), "   :header-rows: 1", ""]
    for row in rows:
        for number, text in enumerate(row):
            mark = "   * - " if number == 0 else "     - "
            lines.append((mark + text.replace("\n", " ")).rstrip())
    return "\n".join(lines)
