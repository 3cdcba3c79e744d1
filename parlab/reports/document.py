"""A report's text -> Markdown tokens; directives become tokens. Pure.

Directives within code are not parsed, `\\{{` escapes a directive, and HTML is treated as text.
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
"""Maximum length of a report in characters."""
MAX_DIRECTIVES = 200
_MAX_LINES = 30
"""Maximum number of lines of a directive."""


class Document(NamedTuple):
    """A parsed text."""

    text: str
    tokens: Sequence[Token]

    def directives(self) -> list[Directive]:
        """Return the distinct directives in the order of the text."""
        directives = (token.meta["directive"] for token in walk(self.tokens) if token.type in (BLOCK, INLINE))
        return list({directive.source: directive for directive in directives}.values())


def read(text: str) -> Document:
    """Parse a report's text. Raises ValueError if it is too long or contains too many directives."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the text has {len(text)} characters, more than {MAX_LENGTH}; split it into two reports")
    document = Document(text, parser().parse(text))
    count = len(document.directives())
    if count > MAX_DIRECTIVES:
        raise ValueError(f"the text has {count} directives, more than {MAX_DIRECTIVES}; split it into two reports")
    return document


def parser() -> MarkdownIt:
    """Return the parser of report texts: CommonMark with tables and directives, without HTML."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    markdown.block.ruler.before("fence", BLOCK, _block_rule, {"alt": ["paragraph", "blockquote", "list"]})
    markdown.inline.ruler.before("escape", INLINE, _inline_rule)
    return markdown


def walk(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield all tokens, including nested ones."""
    for token in tokens:
        yield token
        yield from walk(token.children or [])


def _block_rule(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Parse lines that contain exactly one directive, from `{{` to `}}`."""
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
    block_directive = directive(text[2:-2])
    if block_directive.is_inline:
        return False
    if not silent:
        state.line = line + 1
        token = state.push(BLOCK, "div", 0)
        token.map = [start_line, state.line]
        token.meta = {"directive": block_directive}
    return True


def _line(state: StateBlock, line: int) -> str:
    return str(state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]).strip()


def _inline_rule(state: StateInline, silent: bool) -> bool:
    """Parse a directive within a sentence."""
    if not state.src.startswith("{{", state.pos):
        return False
    end = state.src.find("}}", state.pos)
    if end < 0:
        inline_directive = Directive(
            state.src[state.pos + 2 :][:80], "", problem="the closing }} of this directive is missing"
        )
        end = len(state.src) - 2
    else:
        inline_directive = directive(state.src[state.pos + 2 : end])
        if not inline_directive.problem and not inline_directive.is_inline:
            problem = f"{inline_directive.kind} must be on a line of its own; only value can be used in a sentence"
            inline_directive = inline_directive._replace(problem=problem)
    if not silent:
        token = state.push(INLINE, "span", 0)
        token.meta = {"directive": inline_directive, "start": state.pos, "end": end + 2}
    state.pos = end + 2
    return True
