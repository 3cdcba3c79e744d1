"""Imported files as pages show them: the contents of their documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count

from parlab.charts.format import exact, field_title
from parlab.lab.models import Experiment, Finding, Source
from parlab.lab.selectors.figures import figure_digits, figure_title, figure_value
from parlab.lab.selectors.findings import TableDoubts, figure_doubts, table_doubts

from .tunings import Tuning, tuning_of


class CellView(NamedTuple):
    """One cell of a table in a document, as printed."""

    text: str
    kind: str
    """"number", "text", "blank" or "failure"."""
    align: str
    note: str
    """The parsed number with unit, and settings in brackets."""
    doubts: Sequence[Finding]


class ColumnView(NamedTuple):
    name: str
    align: str
    doubts: Sequence[Finding]


class TableView(NamedTuple):
    """One table of a document, complete."""

    number: int
    """Index in the document."""
    title: str
    section: str
    line: int
    columns: list[ColumnView]
    rows: list[list[CellView]]
    doubts: Sequence[Finding]

    @property
    def size(self) -> int:
        return len(self.rows) * len(self.columns)


class FigureView(NamedTuple):
    """One number stated in the text."""

    name: str
    title: str
    value: str
    all_digits: str
    text: str
    section: str
    line: int
    doubts: Sequence[Finding]


class ImageView(NamedTuple):
    """A picture that a document refers to; `picture` is its id if it was imported with the document."""

    reference: str
    alt: str
    section: str
    line: int
    picture: int | None


class ConfigView(NamedTuple):
    section: str
    line: int
    text: str


class SourceView(NamedTuple):
    """One imported file."""

    pk: int
    name: str
    format: str
    size: int
    sha256: str
    created_at: datetime
    created_by: str
    version: int
    continued_at: datetime | None
    lines: int
    runs: int
    tables: list[TableView]
    figures: list[FigureView]
    images: list[ImageView]
    configs: list[ConfigView]
    tuning: Tuning | None
    unread: int
    unread_examples: list[Mapping[str, Any]]
    findings: int
    """Number of open findings about the file."""

    @property
    def has_content(self) -> bool:
        return bool(self.tables or self.figures or self.images or self.configs)

    @property
    def cells(self) -> int:
        """Approximate size on a page, in table cells."""
        return sum(table.size for table in self.tables) + len(self.figures) + 20 * len(self.configs)


_COLUMNS = ("pk", "name", "format", "size", "sha256", "created_at", "created_by__username", "version", "continued_at")
# Segments make up most of the document of a long log; pages of runs show them, not pages of sources.
_PARTS = ("lines", "tables", "figures", "images", "configs", "unread")


def source_views(experiment: Experiment, findings: Iterable[Finding], only: int | None = None) -> list[SourceView]:
    """Return the imported files of an experiment, or `only` one of them, with their contents."""
    sources = experiment.sources.order_by("pk") if only is None else experiment.sources.filter(pk=only)
    pictures: dict[tuple[int, str], int] = {}
    rows = list(sources.annotate(runs_made=Count("runs")).values(*_COLUMNS, "runs_made", *_paths()))
    if rows:
        references = Source.objects.filter(pk__in=[row["pk"] for row in rows], pictures__isnull=False)
        for source, reference, picture in references.values_list("pk", "pictures__reference", "pictures__pk"):
            pictures[source, reference] = picture
    findings = list(findings)
    return [_source_view(row, pictures, findings) for row in rows]


def _paths() -> list[str]:
    return [f"document__{part}" for part in _PARTS]


def _source_view(
    row: Mapping[str, Any], pictures: Mapping[tuple[int, str], int], findings: Sequence[Finding]
) -> SourceView:
    pk = row["pk"]
    parts = {name: row[f"document__{name}"] for name in _PARTS}
    in_tables, in_figures = table_doubts(findings, pk), figure_doubts(findings, pk)
    unread = parts["unread"] or {}
    return SourceView(
        pk=pk,
        name=row["name"],
        format=row["format"],
        size=row["size"],
        sha256=row["sha256"],
        created_at=row["created_at"],
        created_by=row["created_by__username"],
        version=row["version"],
        continued_at=row["continued_at"],
        lines=parts["lines"] or 0,
        runs=row["runs_made"],
        tables=[_table_view(index, table, in_tables.get(index)) for index, table in enumerate(parts["tables"] or [])],
        figures=_figure_views(parts["figures"] or {}, in_figures),
        images=[
            ImageView(
                image["source"],
                image.get("alt", ""),
                image.get("section") or "",
                image["line"],
                pictures.get((pk, image["source"])),
            )
            for image in parts["images"] or []
        ],
        configs=[
            ConfigView(
                config.get("section") or "", config["line"], json.dumps(config["data"], indent=2, ensure_ascii=False)
            )
            for config in parts["configs"] or []
        ],
        tuning=tuning_of(pk, parts),
        unread=unread.get("lines", 0),
        unread_examples=unread.get("examples", []),
        findings=sum(1 for finding in findings if finding.source_id == pk and not finding.is_acknowledged),
    )


def _table_view(index: int, table: Mapping[str, Any], doubts: TableDoubts | None) -> TableView:
    doubts = doubts or TableDoubts({}, {}, [])
    columns, rows = table["columns"], table["rows"]
    aligned = [*table.get("align", []), *[""] * len(columns)]
    # Without an alignment in the document, columns with numbers are right-aligned.
    align = [
        aligned[n] or ("right" if any(n < len(row) and row[n]["kind"] == "number" for row in rows) else "left")
        for n in range(len(columns))
    ]
    cells = [
        [_cell_view(cell, align[n], doubts.cells.get((number, n), [])) for n, cell in enumerate(row[: len(columns)])]
        for number, row in enumerate(rows)
    ]
    return TableView(
        index,
        table.get("title") or "",
        table.get("section") or "",
        table["line"],
        [ColumnView(name, align[n], doubts.columns.get(n, [])) for n, name in enumerate(columns)],
        cells,
        doubts.whole,
    )


def _cell_view(cell: Mapping[str, Any], align: str, doubts: Sequence[Finding]) -> CellView:
    notes = []
    if cell["kind"] == "number" and cell.get("value") is not None:
        notes.append(f"{exact(cell['value'])} {cell.get('unit', '')}".strip())
    notes += [f"{field_title(name).lower()}: {value}" for name, value in (cell.get("details") or {}).items()]
    return CellView(cell["text"], cell["kind"], align, ", ".join(notes), doubts)


def _figure_views(
    figures: Mapping[str, Sequence[Mapping[str, Any]]], doubts: Mapping[tuple[str, str], Sequence[Finding]]
) -> list[FigureView]:
    views = [
        FigureView(
            name,
            figure_title(name),
            figure_value(name, figure),
            figure_digits(name, figure),
            figure.get("text", ""),
            figure.get("section") or "",
            figure.get("line", 0),
            doubts.get((name, f"#{number}"), doubts.get((name, f"line {figure.get('line', 0)}"), [])),
        )
        for name, occurrences in figures.items()
        for number, figure in enumerate(occurrences)
    ]
    return sorted(views, key=lambda figure: figure.line)
