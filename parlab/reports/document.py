"""A report's text -> Markdown tokens, with directives as tokens of their own. Pure.

Markdown inside of code stays as it is written, `\\{{` is no directive, and HTML is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from .directives import Directive, directive

BLOCK, INLINE = "directive_block", "directive_inline"
MAX_LENGTH = 200_000
"""Characters of a report."""
MAX_DIRECTIVES = 200
_MAX_LINES = 30
"""Lines of one directive."""


class Document(NamedTuple):
    """A text that was read."""

    text: str
    tokens: Sequence[Token]

    def directives(self) -> list[Directive]:
        """List the directives once each, in the order of the text."""
        found = (token.meta["directive"] for token in walk(self.tokens) if token.type in (BLOCK, INLINE))
        return list({one.source: one for one in found}.values())


def read(text: str) -> Document:
    """Read a report's text. Raises ValueError where it is too long or holds too many directives."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the text has {len(text)} characters, more than {MAX_LENGTH}; make two reports of it")
    document = Document(text, parser().parse(text))
    count = len(document.directives())
    if count > MAX_DIRECTIVES:
        raise ValueError(f"the text has {count} directives, more than {MAX_DIRECTIVES}; make two reports of it")
    return document


def parser() -> MarkdownIt:
    """Make the one reader of report texts: CommonMark with tables, without HTML, with directives."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.block.ruler.before("fence", BLOCK, _block_rule, {"alt": ["paragraph", "blockquote", "list"]})
    markdown.inline.ruler.before("escape", INLINE, _inline_rule)
    return markdown


def walk(tokens: Sequence[Token]) -> Iterator[Token]:
    """Go through all tokens, those inside of others included."""
    for token in tokens:
        yield token
        yield from walk(token.children or [])


def _block_rule(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Take lines that are one directive from `{{` to `}}` and nothing else."""
    if state.is_code_block(start_line) or not _line(state, start_line).startswith("{{"):
        return False
    text = ""
    for line in range(start_line, min(end_line, start_line + _MAX_LINES)):
        part = _line(state, line)
        if not part:
            return False
        text += f" {part}"
        if "}}" in part:
            break
    text = text.strip()
    if not text.endswith("}}") or "}}" in text[:-2] or "{{" in text[2:]:
        return False
    found = directive(text[2:-2])
    if found.is_inline:
        return False
    if not silent:
        state.line = line + 1
        token = state.push(BLOCK, "div", 0)
        token.map = [start_line, state.line]
        token.meta = {"directive": found}
    return True


def _line(state: StateBlock, line: int) -> str:
    return str(state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]).strip()


def _inline_rule(state: StateInline, silent: bool) -> bool:
    """Take a directive in the middle of a sentence."""
    if not state.src.startswith("{{", state.pos):
        return False
    end = state.src.find("}}", state.pos)
    if end < 0:
        found = Directive(state.src[state.pos + 2 :][:80], "", problem="{{ begins a directive that no }} ends")
        end = len(state.src) - 2
    else:
        found = directive(state.src[state.pos + 2 : end])
        if not found.problem and not found.is_inline:
            found = found._replace(problem=f"{found.kind} needs a line of its own; only value stands in a sentence")
    if not silent:
        token = state.push(INLINE, "span", 0)
        token.meta = {"directive": found, "start": state.pos, "end": end + 2}
    state.pos = end + 2
    return True
