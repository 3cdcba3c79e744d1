"""Directives of a report -> blocks with the current data of the database; errors become blocks in their place."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q

from parlab.charts import theme
from parlab.charts.axes import GPUS, RUN
from parlab.charts.format import DIGITS, SPACE, Unit, exact_quantity, printed_digits
from parlab.charts.measures import AUTO, DEFAULT, MEASURES, SCALES, Options, Scale
from parlab.charts.points import RunPoint, is_number
from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.charts.theme import Drawing
from parlab.ingest.readings.result_tables import is_tuning_summary
from parlab.lab.models import Experiment, Finding, Report, Run, Snapshot, Source, Tag, TagOfRun
from parlab.lab.selectors import experiments as experiments_selectors
from parlab.lab.selectors.analysis.identities import identities
from parlab.lab.selectors.analysis.sweep import run_points
from parlab.lab.selectors.experiments import Versions, versions_with_results
from parlab.lab.selectors.findings import experiment_findings, run_doubts
from parlab.lab.selectors.records import run_records
from parlab.lab.selectors.runs import model_text
from parlab.reports import blocks
from parlab.reports.blocks import Block, Content
from parlab.reports.directives import Directive, listed, number, select_records
from parlab.reports.document import Document
from parlab.reports.facts import run_block
from parlab.reports.pivot import (
    AGGREGATES,
    FINISHED,
    OOM,
    PRINTED,
    Record,
    doubts_of,
    field_named,
    fields_of,
    number_text,
)
from parlab.reports.shapes import pivot_block, plain_value, runs_block
from parlab.reports.units import shown_unit
from parlab.whole_numbers import whole_number

from .figures import run_curves
from .figures.catalogue import CURVES_OF_RUNS, RUN_FIGURES, SERIES, experiment_drawing
from .figures.compared_curves import curves_drawing, run_name
from .figures.kinds import with_kinds
from .figures.windows import WIDE, Window
from .page_parts import page_figure, page_part

logger = logging.getLogger(__name__)
MAX_CURVES = 6
"""Series of one figure."""


class _Loaded(NamedTuple):
    """The runs of one or several experiments, as rows and as records."""

    experiments: Sequence[Experiment]
    runs: Sequence[Run]
    records: Sequence[Record]
    note: str = ""
    """Which version the runs belong to, if the newest version has no results; else empty."""


class RunFilter(NamedTuple):
    """The runs that the panels of a dashboard are about, of all those of their experiments."""

    tag: str = ""
    since: datetime | None = None
    """Runs that were requested at this time or later."""
    model: str = ""
    """What runs train, as `model_text` says it."""

    def kept(self, runs: Sequence[Run]) -> list[Run]:
        late = [run for run in runs if self.since is None or run.queued_at >= self.since]
        if self.model:
            late = [run for run in late if model_text(run.resolved) == self.model]
        if not self.tag:
            return late
        experiments = {run.experiment_id for run in late}
        whole = set(Tag.objects.filter(experiment__in=experiments, name=self.tag).values_list("experiment", flat=True))
        own = set(TagOfRun.objects.filter(run__in=late, name=self.tag).values_list("run", flat=True))
        return [run for run in late if run.pk in own or run.experiment_id in whole]


EVERY_RUN = RunFilter()
Experiments = dict[tuple[str, str], _Loaded]
"""What was loaded, by the options `experiment` and `version`; texts of the same page can share it."""


class Resolver:
    """Resolves the directives of one report; loads each experiment only once."""

    def __init__(self, report: Report, loaded: Experiments | None = None, only: RunFilter = EVERY_RUN) -> None:
        self.report, self.only = report, only
        self.findings: list[Finding] = []
        self._loaded: Experiments = {} if loaded is None else loaded
        self._resolvers: dict[str, Callable[[Directive], Block]] = {
            "figure": self._figure,
            "table pivot": self._pivot,
            "table runs": self._runs,
            "table run": self._run_table,
            "table spaces": self._spaces,
            "value": self._value,
            "config": self._config,
            "picture": self._picture,
            "panel": self._panel,
            "part": self._part,
        }

    def block(self, directive: Directive) -> Block:
        """Return the block of a directive; an invalid directive becomes a ProblemBlock."""
        if directive.problem:
            return blocks.ProblemBlock(message=directive.problem)
        try:
            return self._noted(self._resolvers[directive.kind](directive), directive)
        except ValueError as problem:
            return blocks.ProblemBlock(message=str(problem))
        except Exception:
            # Numbers of any origin arrive here: one that a chart cannot draw must not break the whole page.
            logger.exception("a directive of report %s could not be shown: %s", self.report.slug, directive.source)
            return blocks.ProblemBlock(message="parlab could not create this; see the server log for the reason")

    def _noted(self, block: Block, directive: Directive) -> Block:
        """Return the block with a sentence about the version that its numbers belong to."""
        if directive.kind == "picture" or "page" in directive.options:
            return block  # of no version
        if not (note := self._load(directive.options).note):
            return block
        match block:
            case blocks.TableBlock() | blocks.FigureBlock() | blocks.PictureBlock():
                return block.model_copy(update={"caption": f"{block.caption} {note}".strip()})
            case blocks.ValueBlock():
                return block.model_copy(update={"exact": f"{block.exact or block.text}. {note}"})
        return block

    def doubt(self, finding: Finding) -> int:
        """Return the number of a finding, in the order of first occurrence in the report."""
        if finding not in self.findings:
            self.findings.append(finding)
        return self.findings.index(finding) + 1

    def _load(self, options: Mapping[str, str]) -> _Loaded:
        key = options.get("experiment", ""), options.get("version", "")
        if key not in self._loaded:
            self._loaded[key] = self._loaded_experiments(*key)
        return self._loaded[key]

    def _loaded_experiments(self, names: str, version: str) -> _Loaded:
        experiments = [_experiment(slug) for slug in listed(names)] or (
            [self.report.experiment] if self.report.experiment else []
        )
        if not experiments:
            raise ValueError(
                "this report has no default experiment, or it was deleted; add experiment=slug, with the slug from the"
                " address of an experiment"
            )
        runs: list[Run] = []
        records: list[Record] = []
        notes: list[str] = []
        for experiment in experiments:
            versions = versions_with_results(experiment, version)
            asked = whole_number(version)
            if asked is not None and not (versions.selected and versions.selected.version == asked):
                raise ValueError(f"experiment {experiment.slug} has no version {version}")
            notes += [] if version else _version_note(versions)
            experiment_runs = self.only.kept(experiments_selectors.experiment_runs(experiment, versions))
            doubts = run_doubts(experiment_findings(experiment), experiment_runs)
            columns = {"experiment": experiment.name} if len(experiments) > 1 else {}
            runs += experiment_runs
            records += [{**columns, **record} for record in run_records(experiment_runs, doubts)]
        return _Loaded(experiments, runs, records, " ".join(notes))

    def _selected(self, options: Mapping[str, str]) -> tuple[_Loaded, list[Record]]:
        """Return the records selected by `where` and `run`; raises ValueError if there are none."""
        loaded = self._load(options)
        records = select_records(loaded.records, options.get("where", ""), fields_of(loaded.records))
        run_number = number(options, "run")
        if run_number is not None:
            records = [record for record in records if record["run"] == run_number]
            if not records:
                slug = loaded.experiments[0].slug
                raise ValueError(f"experiment {slug} has no run {run_number} in this version, or it was deleted")
        if not records:
            raise ValueError(f"no run matches where={options['where']!r}" if "where" in options else "no runs yet")
        return loaded, records

    def _figure(self, directive: Directive) -> Block:
        if page := directive.options.get("page"):
            return self._figure_block(directive, page_figure(page), [])
        loaded, records = self._selected(directive.options)
        if "run" in directive.options:
            drawing = self._run_figure(directive, _run_of(loaded, records[0]))
        elif directive.name in (*EXPERIMENT_FIGURES, CURVES_OF_RUNS):
            selected = {id(record) for record in records}
            runs = [run for run, record in zip(loaded.runs, loaded.records, strict=True) if id(record) in selected]
            draw = self._curves if directive.name == CURVES_OF_RUNS else self._experiment_figure
            drawing = draw(directive, runs)
        else:
            hint = " of an experiment; add run= for the figure of a run" if directive.name in RUN_FIGURES else ""
            names = ", ".join([*EXPERIMENT_FIGURES, CURVES_OF_RUNS])
            raise ValueError(f"unknown figure {directive.name!r}{hint}; use one of {names}")
        return self._figure_block(directive, drawing, records)

    def _figure_block(self, directive: Directive, drawing: Drawing, records: Sequence[Record]) -> Block:
        if drawing.figure is None:
            raise ValueError(drawing.empty or "there is nothing to draw")
        figure: dict[str, Any] = json.loads(theme.settled(drawing.figure).to_json())
        doubts = sorted({self.doubt(finding) for record in records for finding in _all_doubts(record)})
        title = directive.options.get("title") or str(figure["layout"].get("title", {}).get("text") or directive.name)
        figure["layout"].setdefault("title", {})["text"] = title.replace("<", "&lt;")
        numbers = [drawing.table.header, *drawing.table.rows]
        return blocks.FigureBlock(
            title=title, figure=figure, caption=drawing.caption, numbers=json.loads(json.dumps(numbers)), doubts=doubts
        )

    def _experiment_figure(self, directive: Directive, runs: Sequence[Run]) -> Drawing:
        axis_options = {name: text for name, text in directive.options.items() if name in Options._fields}
        figure = EXPERIMENT_FIGURES[directive.name]
        if axis_options and not figure.choices:
            raise ValueError(f"figure {figure.name} has fixed axes; remove {', '.join(axis_options)}")
        options = _axis_options(axis_options, run_points(runs)) if axis_options else AUTO
        return experiment_drawing(figure, runs, options)

    def _curves(self, directive: Directive, runs: Sequence[Run]) -> Drawing:
        """Draw series of all runs, one panel for each series."""
        kinds = listed(directive.options.get("series", ""))[:MAX_CURVES]
        if not kinds:
            raise ValueError(
                f"figure {CURVES_OF_RUNS} requires series=; write, for example,"
                f" {{{{ figure {CURVES_OF_RUNS} series=loss,step-time }}}}"
            )
        names = identities(runs) if len({run.experiment_id for run in runs}) == 1 else {}
        named = (lambda run: names[run.pk].name) if names else run_name
        return curves_drawing(runs, kinds, Window(WIDE), named=named)

    def _run_figure(self, directive: Directive, run: Run) -> Drawing:
        name, metrics = directive.name, listed(directive.options.get("series", ""))
        if name not in RUN_FIGURES and name != SERIES:
            raise ValueError(f"unknown figure {name!r} of a run; use one of {', '.join([*RUN_FIGURES, SERIES])}")
        if (name == SERIES) != bool(metrics):
            raise ValueError(
                f"figure {SERIES} requires series=; write, for example,"
                f" {{{{ figure {SERIES} run={run.number} series=loss,grad_norm }}}}"
                if name == SERIES
                else f"figure {name} shows no chosen series; remove series=, or use figure {SERIES}"
            )
        attempt = run.attempts.filter(number=run.attempt_number).first()
        if attempt is None:
            raise ValueError(f"run {run.number} has no curves: only its figures were published")
        window = Window(WIDE)
        drawing = (
            run_curves.series(attempt, window, metrics) if name == SERIES else RUN_FIGURES[name](run, attempt, window)
        )
        return drawing._replace(table=with_kinds(run, name, drawing.table))

    def _pivot(self, directive: Directive) -> Block:
        return pivot_block(self._load(directive.options).records, directive.options, self.doubt)

    def _runs(self, directive: Directive) -> Block:
        return runs_block(self._load(directive.options).records, directive.options, self.doubt)

    def _run_table(self, directive: Directive) -> Block:
        return run_block(self._selected(directive.options)[1][0], directive.options, self.doubt)

    def _spaces(self, directive: Directive) -> Block:
        """Return the tuning spaces that an imported file lists, as printed."""
        title = directive.options.get("title", "")
        sources = Source.objects.filter(experiment__in=self._load(directive.options).experiments).order_by("pk")
        for document in sources.values_list("document", flat=True):
            for table in document.get("tables") or []:
                if is_tuning_summary(table["columns"]):
                    rows = [[blocks.Text(text=str(cell.get("text", ""))) for cell in row] for row in table["rows"]]
                    header = [blocks.Text(text=column) for column in table["columns"]]
                    filled = [row for row in rows if any(cell.text for cell in row)]
                    numbers = [[cell.text for cell in row] for row in (header, *filled)]
                    return blocks.TableBlock(title=title, header=header, rows=filled, numbers=numbers)
        return blocks.TableBlock(title=title, header=[], rows=[], caption="No imported file lists tuning spaces.")

    def _value(self, directive: Directive) -> Block:
        """Return one number, or the texts of a field that is not numeric."""
        options = directive.options
        field, records = self._value_records(directive)
        doubts = [
            self.doubt(finding)
            for finding in dict.fromkeys(finding for record in records for finding in doubts_of(record, field))
        ]
        values = [record[field] for record in records]
        if not all(is_number(value) for value in values):
            texts = ["OOM" if value == OOM else plain_value(value) for value in values]
            return blocks.ValueBlock(text=", ".join(dict.fromkeys(texts)), doubts=doubts)
        aggregate = options.get("aggregate", "median")
        if aggregate not in AGGREGATES:
            raise ValueError(f"unknown aggregate {aggregate!r}; use one of {', '.join(AGGREGATES)}")
        value = values[0] if len(values) == 1 else AGGREGATES[aggregate](values)
        unit = shown_unit(field, [value], options.get("unit", ""))
        is_printed = len(records) == 1 and records[0].get("origin") in PRINTED
        digits = printed_digits(value, unit.base) if is_printed else DIGITS
        text = _value_text(value, unit, number(options, "decimals", most=12), digits)
        return blocks.ValueBlock(text=text, exact=exact_quantity(value, unit.base).strip(), doubts=doubts)

    def _value_records(self, directive: Directive) -> tuple[str, list[Record]]:
        """Return the field of a value and the records to take it from; raises ValueError if the choice is not clear."""
        options = directive.options
        _, records = self._selected(options)
        field = directive.name
        if field not in fields_of(records):
            field = field_named(field, fields_of(self._load(options).records))
        measured = [
            record
            for record in records
            if record.get(field) is not None and (record.get("state") == FINISHED or "run" in options)
        ]
        if not measured:
            raise ValueError(f"{field} was not measured in {'this run' if len(records) == 1 else 'these runs'}")
        if len(measured) > 1 and "aggregate" not in options:
            raise ValueError(
                f"{len(measured)} runs have {field}; select one with run= or where=, or add aggregate=median"
            )
        return field, measured

    def _config(self, directive: Directive) -> Block:
        loaded, records = self._selected(directive.options)
        run = _run_of(loaded, records[0])
        imported = run.origin == Run.Origin.IMPORTED
        configuration = _nested(run.launch.get("arguments") or {}) if imported else run.resolved
        only = listed(directive.options.get("only", ""))
        missing = next((name for name in only if name not in configuration), None)
        if missing is not None:
            raise ValueError(f"the configuration has no part {missing!r}; use one of {', '.join(configuration)}")
        sections = {name: configuration[name] for name in only} if only else configuration
        return blocks.CodeBlock(text=json.dumps(sections, indent=2, ensure_ascii=False))

    def _picture(self, directive: Directive) -> Block:
        if len(directive.name) < 6:
            raise ValueError(f"picture name {directive.name!r} is too short; copy the directive from the gallery")
        pictures = Snapshot.objects.filter(Q(kind=Snapshot.Kind.IMAGE), digest__startswith=directive.name)[:2]
        if len(pictures) != 1:
            problem = "matches several pictures" if pictures else "does not exist, or it was deleted"
            raise ValueError(f"picture {directive.name!r} {problem}; copy the directive from the gallery")
        return _picture_block(pictures[0], directive)

    def _part(self, directive: Directive) -> Block:
        return page_part(directive.name, directive.options["page"], directive.options.get("title", ""))

    def _panel(self, directive: Directive) -> Block:
        loaded, records = self._selected(directive.options)
        run = _run_of(loaded, records[0])
        drawn = run.snapshots.filter(kind=Snapshot.Kind.IMAGE, content__panel=directive.name).order_by("-pk").first()
        if drawn is None:
            raise ValueError(
                f"the panel {directive.name} of run {run.number} has not been drawn yet; draw it on the page Pictures"
            )
        return _picture_block(drawn, directive)


def _value_text(value: float, unit: Unit, decimals: int | None, digits: int) -> str:
    if not unit.name and decimals is None:
        return plain_value(value)
    text = number_text(value / unit.factor, decimals, is_count=not unit.name, digits=digits)
    return f"{text}{SPACE}{unit.name}" if unit.name else text


def resolve(
    document: Document, *, report: Report, loaded: Experiments | None = None, only: RunFilter = EVERY_RUN
) -> Content:
    """Return all blocks of a report and the findings about its numbers."""
    resolver = Resolver(report, loaded, only)
    resolved = {
        directive.source: resolver.block(directive) for directive in document.directives() if not directive.problem
    }
    return Content(blocks=resolved, order=list(resolved), findings=[_finding(finding) for finding in resolver.findings])


def unknown_names(document: Document, content: Content) -> list[str]:
    """Return what a text names that does not exist, or writes wrong: only its author can mend it."""
    written = [directive.problem for directive in document.directives() if directive.problem]
    resolved = content.blocks.values()
    return written + [
        block.message for block in resolved if isinstance(block, blocks.ProblemBlock) and block.is_unknown_name
    ]


def _finding(finding: Finding) -> blocks.Finding:
    reason = finding.acknowledged_reason if finding.is_acknowledged else ""
    return blocks.Finding(severity=finding.severity, message=finding.message, rule=finding.rule, acknowledged=reason)


def _axis_options(texts: Mapping[str, str], points: Sequence[RunPoint]) -> Options:
    """Return the axis options of a figure; raises ValueError with the valid values."""
    y = texts.get("y", DEFAULT)
    if y not in MEASURES:
        raise ValueError(f"unknown y={y!r}; use one of {', '.join(MEASURES)}")
    axes = list(dict.fromkeys(axis for point in points for axis in point.values))
    x = texts.get("x", "")
    x = x if x in ("", GPUS, RUN) else field_named(x, axes)
    scales: dict[str, Scale] = {}
    for name in ("x_scale", "y_scale"):
        scale = next((scale for scale in SCALES if scale == texts.get(name, "auto")), None)
        if scale is None:
            raise ValueError(f"unknown {name}={texts[name]!r}; use one of {', '.join(SCALES)}")
        scales[name] = scale
    by = [field_named(axis, axes) for axis in listed(texts.get("by", ""))]
    return Options(y=y, x=x, by=by, x_scale=scales["x_scale"], y_scale=scales["y_scale"])


def _picture_block(snapshot: Snapshot, directive: Directive) -> Block:
    content = snapshot.content
    if "sha256" not in content or not content.get("width"):
        raise ValueError("an imported page refers to this picture, but its file was not imported")
    return blocks.PictureBlock(
        sha256=content["sha256"],
        media_type=content["media_type"],
        width=content["width"],
        height=content["height"],
        caption=directive.options.get("caption", content.get("caption", "")),
        shown_width=number(directive.options, "width", most=4000),
    )


def _version_note(versions: Versions) -> list[str]:
    """Say which version is shown if the newest version is not, because it has no results."""
    if versions.selected is None or versions.selected == versions.configs[0]:
        return []
    return [f"Results of version {versions.selected.version}; version {versions.configs[0].version} has none."]


def _experiment(slug: str) -> Experiment:
    experiment = Experiment.objects.filter(slug=slug).first()
    if experiment is None:
        raise ValueError(
            f"experiment {slug!r} does not exist, or it was deleted; use another slug, or remove this directive"
        )
    return experiment


def _run_of(loaded: _Loaded, record: Record) -> Run:
    return next(run for run, candidate in zip(loaded.runs, loaded.records, strict=True) if candidate is record)


def _all_doubts(record: Record) -> list[Finding]:
    doubts: Mapping[str, Sequence[Finding]] = record.get("doubts") or {}
    return list(dict.fromkeys(finding for findings in doubts.values() for finding in findings))


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted arguments as nested dictionaries, as in their file."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        level = nested
        *parts, last = name.split(".")
        for part in parts:
            below = level.setdefault(part, {})
            if not isinstance(below, dict):
                return dict(flat)  # a name stands for a value and for a level: keep the dotted names
            level = below
        level[last] = value
    return nested
