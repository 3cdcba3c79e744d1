"""Contents of the directives of a report: plain data that is frozen when the report is published. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field


class Text(BaseModel):
    """A table cell; `doubts` are the numbers of the findings about it in the report, from 1."""

    text: str
    doubts: list[int] = []
    state: str = "value"
    """State of a pivot cell: "value", "several", "missing", "oom", ...; "name" marks a row heading."""
    is_number: bool = False
    is_best: bool = False
    exact: str = ""
    """The number with all digits, or the reason why there is none."""


class TableBlock(BaseModel):
    """A table with headings, rows, a title and a caption."""

    kind: Literal["table"] = "table"
    title: str = ""
    header: list[Text]
    spanning: str = ""
    """Common heading of the value columns, shown above them."""
    names: int = 1
    """Number of columns with row headings."""
    rows: list[list[Text]]
    caption: str = ""
    numbers: list[list[Any]] = []
    """Headings and cells for CSV, in SI units with all digits."""


class FigureBlock(BaseModel):
    """A figure with its data, so that it can be drawn at any time."""

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
    """A configuration as source text."""

    kind: Literal["code"] = "code"
    language: str = "json"
    text: str


class PictureBlock(BaseModel):
    kind: Literal["picture"] = "picture"
    sha256: str
    media_type: str
    width: int
    height: int
    caption: str = ""
    shown_width: int | None = None


class PartBlock(BaseModel):
    """A part of another page: its markup when it was read."""

    kind: Literal["part"] = "part"
    title: str
    html: str
    """Sanitised: no scripts, no forms, nothing that loads from elsewhere."""
    text: str
    """Its words, for formats without pictures."""
    sheets: list[str]
    """Names of the style sheets of its page."""
    page: str

    @property
    def is_sentence(self) -> bool:
        """Whether it has neither a drawing nor a table."""
        return "<svg" not in self.html and "<table" not in self.html


_UNKNOWN = ("unknown ", "no experiment ", "no run ")


class ProblemBlock(BaseModel):
    """The reason why a directive cannot be shown, with the remedy."""

    kind: Literal["problem"] = "problem"
    message: str

    @property
    def is_unknown_name(self) -> bool:
        """Whether the text names something that does not exist, which only its author can mend."""
        return self.message.startswith(_UNKNOWN)


Block = Annotated[
    TableBlock | FigureBlock | ValueBlock | CodeBlock | PictureBlock | PartBlock | ProblemBlock,
    Field(discriminator="kind"),
]


class Finding(BaseModel):
    """A finding about numbers of the report, as shown in its last section."""

    severity: str
    message: str
    rule: str
    acknowledged: str = ""
    """Reason of the acknowledgement; empty for an open finding."""


class Content(BaseModel):
    """Resolved directives of a text (source of the directive -> block) and the findings about their numbers."""

    blocks: dict[str, Block] = {}
    order: list[str] = []
    """Sources in the order of the text: a database may reorder the keys of a JSON object."""
    findings: list[Finding] = []

    def at(self, source: str) -> Block:
        return self.blocks.get(source) or ProblemBlock(
            message="this directive was not part of the report when it was published"
        )

    def in_order(self) -> list[Block]:
        return [self.blocks[source] for source in self.order or self.blocks]

    def figures(self) -> list[tuple[str, FigureBlock]]:
        """Return (file name without extension, block) of the figures, in the order of the text."""
        figures = [block for block in self.in_order() if isinstance(block, FigureBlock)]
        return [(f"figure-{number}", block) for number, block in enumerate(figures, 1)]

    def tables(self) -> list[tuple[str, TableBlock]]:
        """Return (file name without extension, block) of the tables, in the order of the text."""
        tables = [block for block in self.in_order() if isinstance(block, TableBlock)]
        return [(f"table-{number}", block) for number, block in enumerate(tables, 1)]
