"""A report as HTML: the text is sanitised first, then tables, values and figures are inserted. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import nh3
from markdown_it.token import Token

from parlab.charts.format import DASH

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
from .document import BLOCK, INLINE, Document, parser, walk

_TAGS = {
    "a", "blockquote", "br", "code", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {
    "a": {"href", "title"},
    "code": {"class"},
    "div": {"data-block", "class", "tabindex"},
    "span": {"data-block"},
    "ol": {"start"},
    "table": {"class"},
    "td": {"class"},
    "th": {"class"},
}
_SCHEMES = {"http", "https", "mailto"}
_PLACE = re.compile(r'<(div|span) data-block="(\d+)"></(?:div|span)>')


class Pictures(NamedTuple):
    """Functions that render figures and pictures as HTML."""

    figure: Callable[[str, Directive, FigureBlock], str]
    """Name of the figure in the report (`figure-1`), its directive, its block -> HTML."""
    picture: Callable[[PictureBlock], str]
    part: Callable[[PartBlock], str]


def html(document: Document, content: Content, pictures: Pictures) -> str:
    """Return a report as HTML. Apart from the output of `pictures`, it contains no scripts, no styles and nothing that
    a browser would load.
    """
    markdown = parser()
    tokens = list(document.tokens)
    directives = [token for token in walk(tokens) if token.type in (BLOCK, INLINE)]
    numbered = {id(token): number for number, token in enumerate(directives)}

    def place(tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
        tag = "div" if tokens[index].type == BLOCK else "span"
        return f'<{tag} data-block="{numbered[id(tokens[index])]}"></{tag}>'

    markdown.renderer.rules = {  # type: ignore[attr-defined]  # a plain attribute of its renderer
        **markdown.renderer.rules,  # type: ignore[attr-defined]
        BLOCK: place,
        INLINE: place,
        "image": _image,
        "th_open": _markdown_cell,
        "td_open": _markdown_cell,
        "table_open": lambda *_: '<div class="scroll card" tabindex="0"><table class="list">\n',
        "table_close": lambda *_: "</table></div>\n",
    }
    rendered = markdown.renderer.render(tokens, markdown.options, {})
    cleaned = nh3.clean(rendered, tags=_TAGS, attributes=_ATTRIBUTES, url_schemes=_SCHEMES)
    names = {id(block): name for name, block in content.figures()}

    def block_html(match: re.Match[str]) -> str:
        return _directive_html(directives[int(match[2])].meta["directive"], content, names, pictures)

    return _PLACE.sub(block_html, cleaned) + _findings_html(content)


def _image(tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    """Render an external picture as a link: a report loads nothing from other hosts."""
    token = tokens[index]
    source = str(token.attrs.get("src", ""))
    return f'<a href="{escape(source)}">{escape(token.content or source)}</a>'


def _markdown_cell(tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    """Align a table cell by a class, since the page allows no style attributes."""
    token = tokens[index]
    right = "right" in str(token.attrs.get("style", ""))
    return f'<{token.tag} class="number">' if right else f"<{token.tag}>"


def _directive_html(directive: Directive, content: Content, names: dict[int, str], pictures: Pictures) -> str:
    block = ProblemBlock(message=directive.problem) if directive.problem else content.at(directive.source)
    if isinstance(block, TableBlock):
        return table_html(block, content)
    if isinstance(block, FigureBlock):
        return pictures.figure(names[id(block)], directive, block)
    if isinstance(block, ValueBlock):
        hover = f' class="report-value" title="{escape(block.exact)}"' if block.exact else ""
        return f"<span{hover}>{escape(block.text)}</span>{marks_html(block.doubts, content)}"
    if isinstance(block, CodeBlock):
        return f'<pre class="card"><code>{escape(block.text)}</code></pre>'
    if isinstance(block, PictureBlock):
        return pictures.picture(block)
    if isinstance(block, PartBlock):
        return pictures.part(block)
    source = f"<code>{{{{ {escape(directive.source)} }}}}</code>"
    return f'<span class="report-problem" role="note">Not shown: {escape(block.message)}. {source}</span>'


def marks_html(doubts: Sequence[int], content: Content) -> str:
    """Return the markers of a number; each links to its finding at the end of the report."""
    return "".join(
        f'<a class="report-doubt" href="#finding-{number}" title="{escape(_message(number, content))}">'
        f'\N{BLACK UP-POINTING TRIANGLE}{number}<span class="unseen"> doubted</span></a>'
        for number in doubts
    )


def _message(number: int, content: Content) -> str:
    return content.findings[number - 1].message if 0 < number <= len(content.findings) else ""


def table_html(block: TableBlock, content: Content) -> str:
    """Return a table with its title above and its caption below."""
    names, values = block.header[: block.names], block.header[block.names :]
    if block.spanning and values:
        first = "".join(f'<th scope="col" rowspan="2">{escape(text.text)}</th>' for text in names)
        group = f'<th scope="colgroup" class="axis" colspan="{len(values)}">{escape(block.spanning)}</th>'
        second = "".join(_column_heading(text, content) for text in values)
        head = f"<tr>{first}{group}</tr><tr>{second}</tr>"
    else:
        head = f"<tr>{''.join(_column_heading(text, content) for text in block.header)}</tr>"
    body = "".join(f"<tr>{''.join(_cell_html(text, content) for text in row)}</tr>" for row in block.rows)
    title = f'<p class="report-title">{escape(block.title)}</p>' if block.title else ""
    caption = f'<p class="muted">{escape(block.caption)}</p>' if block.caption else ""
    kind = "sweep" if block.spanning else "list"
    label = escape(block.title or "Table")
    return (
        f'<div class="report-table">{title}<div class="scroll card" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{kind}"><thead>{head}</thead><tbody>{body}</tbody></table></div>{caption}</div>'
    )


def _column_heading(text: Text, content: Content) -> str:
    kind = ' class="number"' if text.is_number else ""
    return f'<th scope="col"{kind}>{escape(text.text)}{marks_html(text.doubts, content)}</th>'


def _cell_html(text: Text, content: Content) -> str:
    html_text = f"<b>{escape(text.text)}</b>" if text.is_best else escape(text.text)
    inner = html_text + marks_html(text.doubts, content)
    if text.state == "name":
        return f'<th scope="row">{inner}</th>'
    number = " number" if text.is_number else ""
    hover = f' title="{escape(text.exact)}"' if text.exact else ""
    return f'<td class="cell-{escape(text.state)}{number}"{hover}>{inner}</td>'


def _findings_html(content: Content) -> str:
    if not content.findings:
        return ""
    items = "".join(
        f'<li id="finding-{number}"><b>{escape(finding.severity)}</b> {escape(finding.message)}'
        f' <span class="muted">(rule {escape(finding.rule)})</span>'
        f"{f' Acknowledged: {escape(finding.acknowledged)}' if finding.acknowledged else ''}</li>"
        for number, finding in enumerate(content.findings, 1)
    )
    return f'<section class="report-findings"><h2>Findings</h2><ol>{items}</ol></section>'


def numbers_html(numbers: Sequence[Sequence[Any]]) -> str:
    """Return the numbers of a figure as a table, used when there is no picture of it."""
    if not numbers:
        return ""
    head = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in numbers[0])
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(_number_or_dash(value))}</td>' for value in row)}</tr>" for row in numbers[1:200]
    )
    return (
        f'<div class="scroll card" tabindex="0"><table class="list"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _number_or_dash(value: Any) -> str:
    return DASH if value is None else str(value)
