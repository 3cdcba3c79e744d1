"""A report as HTML: text cleaned of whatever could run, with tables, values and figures put in after that. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import nh3
from markdown_it.token import Token

from parlab.charts.format import DASH

from .blocks import CodeBlock, Content, FigureBlock, PictureBlock, ProblemBlock, TableBlock, Text, ValueBlock
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
    """How figures and pictures get into the page: each gives HTML of its own making."""

    figure: Callable[[str, Directive, FigureBlock], str]
    """Name of the figure in the report (`figure-1`), its directive, its block -> HTML."""
    picture: Callable[[PictureBlock], str]


def html(document: Document, content: Content, pictures: Pictures) -> str:
    """Write a report; the answer holds no script, no style and nothing that a browser would fetch by itself,
    besides what `pictures` puts there.
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
        "th_open": _cell,
        "td_open": _cell,
        "table_open": lambda *_: '<div class="scroll card" tabindex="0"><table class="list">\n',
        "table_close": lambda *_: "</table></div>\n",
    }
    written = markdown.renderer.render(tokens, markdown.options, {})
    cleaned = nh3.clean(written, tags=_TAGS, attributes=_ATTRIBUTES, url_schemes=_SCHEMES)
    names = {id(block): name for name, block in content.figures()}

    def filled(match: re.Match[str]) -> str:
        return _block(directives[int(match[2])].meta["directive"], content, names, pictures)

    return _PLACE.sub(filled, cleaned) + _findings(content)


def _image(tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    """Link to a picture that lies elsewhere: a report loads nothing from other places."""
    token = tokens[index]
    source = str(token.attrs.get("src", ""))
    return f'<a href="{escape(source)}">{escape(token.content or source)}</a>'


def _cell(tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    """Align a cell of the text's own tables by a class: the page allows no style attributes."""
    token = tokens[index]
    right = "right" in str(token.attrs.get("style", ""))
    return f'<{token.tag} class="number">' if right else f"<{token.tag}>"


def _block(found: Directive, content: Content, names: dict[int, str], pictures: Pictures) -> str:
    block = ProblemBlock(message=found.problem) if found.problem else content.at(found.source)
    if isinstance(block, TableBlock):
        return table_html(block, content)
    if isinstance(block, FigureBlock):
        return pictures.figure(names[id(block)], found, block)
    if isinstance(block, ValueBlock):
        hover = f' class="report-value" title="{escape(block.exact)}"' if block.exact else ""
        return f"<span{hover}>{escape(block.text)}</span>{marks_html(block.doubts, content)}"
    if isinstance(block, CodeBlock):
        return f'<pre class="card"><code>{escape(block.text)}</code></pre>'
    if isinstance(block, PictureBlock):
        return pictures.picture(block)
    source = f"<code>{{{{ {escape(found.source)} }}}}</code>"
    return f'<span class="report-problem" role="note">Not shown: {escape(block.message)}. {source}</span>'


def marks_html(doubts: Sequence[int], content: Content) -> str:
    """Write the triangles of a number; each leads to its finding at the end of the report."""
    return "".join(
        f'<a class="report-doubt" href="#finding-{number}" title="{escape(_message(number, content))}">'
        f'\N{BLACK UP-POINTING TRIANGLE}{number}<span class="unseen"> doubted</span></a>'
        for number in doubts
    )


def _message(number: int, content: Content) -> str:
    return content.findings[number - 1].message if 0 < number <= len(content.findings) else ""


def table_html(block: TableBlock, content: Content) -> str:
    """Write a table with its title above and its caption below."""
    names, values = block.header[: block.names], block.header[block.names :]
    if block.spanning and values:
        first = "".join(f'<th scope="col" rowspan="2">{escape(text.text)}</th>' for text in names)
        group = f'<th scope="colgroup" class="axis" colspan="{len(values)}">{escape(block.spanning)}</th>'
        second = "".join(_heading(text, content) for text in values)
        head = f"<tr>{first}{group}</tr><tr>{second}</tr>"
    else:
        head = f"<tr>{''.join(_heading(text, content) for text in block.header)}</tr>"
    body = "".join(f"<tr>{''.join(_text(text, content) for text in row)}</tr>" for row in block.rows)
    title = f'<p class="report-title">{escape(block.title)}</p>' if block.title else ""
    caption = f'<p class="muted">{escape(block.caption)}</p>' if block.caption else ""
    kind = "sweep" if block.spanning else "list"
    label = escape(block.title or "Table")
    return (
        f'<div class="report-table">{title}<div class="scroll card" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{kind}"><thead>{head}</thead><tbody>{body}</tbody></table></div>{caption}</div>'
    )


def _heading(text: Text, content: Content) -> str:
    kind = ' class="number"' if text.is_number else ""
    return f'<th scope="col"{kind}>{escape(text.text)}{marks_html(text.doubts, content)}</th>'


def _text(text: Text, content: Content) -> str:
    shown = f"<b>{escape(text.text)}</b>" if text.is_best else escape(text.text)
    inner = shown + marks_html(text.doubts, content)
    if text.state == "name":
        return f'<th scope="row">{inner}</th>'
    number = " number" if text.is_number else ""
    hover = f' title="{escape(text.exact)}"' if text.exact else ""
    return f'<td class="cell-{escape(text.state)}{number}"{hover}>{inner}</td>'


def _findings(content: Content) -> str:
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
    """Write the numbers of a figure as a table, where there is no picture of it."""
    if not numbers:
        return ""
    head = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in numbers[0])
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(_written(value))}</td>' for value in row)}</tr>" for row in numbers[1:200]
    )
    return (
        f'<div class="scroll card" tabindex="0"><table class="list"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _written(value: Any) -> str:
    return DASH if value is None else str(value)
