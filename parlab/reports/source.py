"""A report as Markdown: its text with all directives replaced by their contents. Pure."""

from __future__ import annotations

import re

from .blocks import (
    CodeBlock,
    Content,
    FigureBlock,
    Finding,
    PartBlock,
    PictureBlock,
    ProblemBlock,
    TableBlock,
    Text,
    ValueBlock,
)
from .directives import Directive
from .document import BLOCK, INLINE, Document
from .markdown import Doubt, doubt_line, plain

TRIANGLE = "\N{BLACK UP-POINTING TRIANGLE}"


def markdown_text(document: Document, content: Content, *, title: str, with_pictures: bool) -> str:
    """Return a report as Markdown; pictures have the paths of the archive, such as `figures/figure-1.png`."""
    lines = document.text.split("\n")
    names = {id(block): name for name, block in content.figures()}
    replaced: list[tuple[int, int, str]] = []
    for token in document.tokens:
        if token.map is None:
            continue
        if token.type == BLOCK:
            block_text = _block_markdown(token.meta["directive"], content, names, with_pictures)
            indent = lines[token.map[0]][: len(lines[token.map[0]]) - len(lines[token.map[0]].lstrip())]
            text = "\n".join(f"{indent}{line}" if line else line for line in f"\n{block_text}\n".split("\n"))
            replaced.append((token.map[0], token.map[1], text))
        if token.type == "inline":
            for child in token.children or []:
                if child.type == INLINE:
                    raw = token.content[child.meta["start"] : child.meta["end"]]
                    _fill(lines, token.map[0], token.map[1], raw, _inline_markdown(child.meta["directive"], content))
    for first, last, text in reversed(replaced):
        lines[first:last] = [text]
    head = "" if begins_with_heading(document) else f"# {plain(title)}\n\n"
    return head + "\n".join(lines).strip() + "\n" + _findings_markdown(content.findings)


def begins_with_heading(document: Document) -> bool:
    """Return whether the text begins with its own title."""
    return bool(document.tokens) and document.tokens[0].type == "heading_open" and document.tokens[0].tag == "h1"


def _fill(lines: list[str], first: int, last: int, raw: str, text: str) -> None:
    """Replace a directive by a text; the lines of a directive that spans several are joined."""
    for number in range(first, last):
        if raw in lines[number]:
            lines[number] = lines[number].replace(raw, text, 1)
            return
    joined = "\n".join(line.strip() for line in lines[first:last])
    if raw in joined:
        replaced = joined.replace(raw, text, 1)
        lines[first:last] = [replaced, *[""] * (last - first - 1)]


def _block_markdown(directive: Directive, content: Content, names: dict[int, str], with_pictures: bool) -> str:
    block = ProblemBlock(message=directive.problem) if directive.problem else content.at(directive.source)
    if isinstance(block, TableBlock):
        return table_markdown(block)
    if isinstance(block, FigureBlock):
        name = names[id(block)]
        marks = marks_text(block.doubts)
        caption = f"{plain(block.title)}. {plain(block.caption)}{marks}"
        return f"![{plain(block.title)}](figures/{name}.png)\n\n{caption}" if with_pictures else f"*{caption}*"
    if isinstance(block, CodeBlock):
        # A fence longer than any run of backticks inside, so that nothing closes the code block early.
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        return f"{fence}{block.language}\n{block.text}\n{fence}"
    if isinstance(block, PictureBlock):
        alternative = plain(block.caption) or "picture"
        return f"![{alternative}](figures/{picture_name(block)})"
    if isinstance(block, ValueBlock):
        return _inline_markdown(directive, content)
    if isinstance(block, PartBlock):
        return f"*{plain(part_text(block))}*"
    return f"> **Not shown:** {plain(block.message)}. `{{{{ {directive.source} }}}}`"


def part_text(block: PartBlock) -> str:
    """Return what a format without pictures says of a part of a page."""
    return f"{block.title}: {block.text if block.is_sentence else block.page}"


def picture_name(block: PictureBlock) -> str:
    """Return the file name of a gallery picture in an archive."""
    return f"{block.sha256[:12]}.{block.media_type.partition('/')[2]}"


def _inline_markdown(directive: Directive, content: Content) -> str:
    block = ProblemBlock(message=directive.problem) if directive.problem else content.at(directive.source)
    if isinstance(block, ValueBlock):
        return plain(block.text) + marks_text(block.doubts)
    message = block.message if isinstance(block, ProblemBlock) else "no number"
    return f"**(not shown: {plain(message)})**"


def marks_text(doubts: list[int]) -> str:
    """Return the markers after a number."""
    return "".join(f" {TRIANGLE}{number}" for number in doubts)


def table_markdown(block: TableBlock) -> str:
    """Return a table; the common heading of its columns becomes part of each heading: `Micro batch size: 1`."""
    heads = [_cell_markdown(text) for text in headings(block)]
    align = [" ---: " if column.is_number else " --- " for column in block.header]
    rows = [f"| {' | '.join(heads)} |", f"|{'|'.join(align)}|"]
    rows += [f"| {' | '.join(_cell_markdown(text) for text in row)} |" for row in block.rows]
    parts = [f"**{plain(block.title)}**" if block.title else "", "\n".join(rows), plain(block.caption)]
    return "\n\n".join(part for part in parts if part)


def headings(block: TableBlock) -> list[Text]:
    """Return the headings for formats that have one heading row."""
    if not block.spanning:
        return block.header
    return [
        text.model_copy(update={"text": f"{block.spanning}: {text.text}"}) if n >= block.names else text
        for n, text in enumerate(block.header)
    ]


def _cell_markdown(text: Text) -> str:
    escaped = plain(text.text)
    return (f"**{escaped}**" if text.is_best else escaped) + marks_text(text.doubts)


def _findings_markdown(findings: list[Finding]) -> str:
    if not findings:
        return ""
    lines = [
        doubt_line(number, Doubt(finding.severity, finding.message, finding.rule, finding.acknowledged))
        for number, finding in enumerate(findings, 1)
    ]
    return "\n## Findings\n\n" + "\n".join(lines) + "\n"
