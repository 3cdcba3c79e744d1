"""What stands where a report has a directive: plain data that is frozen when the report is published. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field


class Text(BaseModel):
    """A text of a table, with the findings that doubt it by their number in the report, from 1."""

    text: str
    doubts: list[int] = []
    state: str = "value"
    """A pivot's state: "value", "several", "missing", "oom", ...; "name" of a heading of a row."""
    is_number: bool = False
    is_best: bool = False
    exact: str = ""
    """All digits, or why there is no number."""


class TableBlock(BaseModel):
    """A table: headings, rows, a title above and a sentence below."""

    kind: Literal["table"] = "table"
    title: str = ""
    header: list[Text]
    spanning: str = ""
    """What the columns after the names of the rows have in common: stands above them."""
    names: int = 1
    """Columns that name a row."""
    rows: list[list[Text]]
    caption: str = ""
    numbers: list[list[Any]] = []
    """The cells in SI units with all digits, for CSV; headings first."""


class FigureBlock(BaseModel):
    """A figure with its data, so that it can be drawn for ever."""

    kind: Literal["figure"] = "figure"
    title: str
    figure: dict[str, Any]
    caption: str
    numbers: list[list[Any]] = []
    doubts: list[int] = []


class ValueBlock(BaseModel):
    """One number in a sentence."""

    kind: Literal["value"] = "value"
    text: str
    exact: str = ""
    doubts: list[int] = []


class CodeBlock(BaseModel):
    """A configuration as it was set."""

    kind: Literal["code"] = "code"
    language: str = "json"
    text: str


class PictureBlock(BaseModel):
    """A picture of the gallery."""

    kind: Literal["picture"] = "picture"
    sha256: str
    media_type: str
    width: int
    height: int
    caption: str = ""
    shown_width: int | None = None


class ProblemBlock(BaseModel):
    """Why nothing stands here, and what to do."""

    kind: Literal["problem"] = "problem"
    message: str


Block = Annotated[
    TableBlock | FigureBlock | ValueBlock | CodeBlock | PictureBlock | ProblemBlock, Field(discriminator="kind")
]


class Finding(BaseModel):
    """A doubt about numbers of the report, as its last section tells it."""

    severity: str
    message: str
    rule: str
    acknowledged: str = ""
    """Why a person says that it is no fault; empty while it is open."""


class Content(BaseModel):
    """All that the directives of a text stand for: source of the directive -> block, and the findings they name."""

    blocks: dict[str, Block] = {}
    order: list[str] = []
    """Sources in the order of the text: a database may keep an object's names in another one."""
    findings: list[Finding] = []

    def at(self, source: str) -> Block:
        return self.blocks.get(source) or ProblemBlock(message="this was not part of the report when it was published")

    def in_order(self) -> list[Block]:
        return [self.blocks[source] for source in self.order or self.blocks]

    def figures(self) -> list[tuple[str, FigureBlock]]:
        """List the figures with the names that their pictures have, in the order of the text."""
        found = [block for block in self.in_order() if isinstance(block, FigureBlock)]
        return [(f"figure-{number}", block) for number, block in enumerate(found, 1)]

    def tables(self) -> list[tuple[str, TableBlock]]:
        """List the tables with the names that their files have."""
        found = [block for block in self.in_order() if isinstance(block, TableBlock)]
        return [(f"table-{number}", block) for number, block in enumerate(found, 1)]
