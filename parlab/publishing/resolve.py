"""Directives of a report -> blocks, from what the database holds now. What cannot be shown says why, in its place."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from django.db.models import Q

from parlab.charts.axes import GPUS, RUN
from parlab.charts.format import SPACE, exact_quantity
from parlab.charts.measures import AUTO, DEFAULT, MEASURES, SCALES, Options, Scale
from parlab.charts.points import RunPoint, is_number
from parlab.charts.registry import EXPERIMENT_FIGURES, Figure
from parlab.charts.theme import Drawing
from parlab.lab import selectors
from parlab.lab.models import Attempt, Experiment, Finding, Report, Run, Snapshot
from parlab.reports import blocks
from parlab.reports.blocks import Block, Content
from parlab.reports.directives import Directive, chosen, listed, number
from parlab.reports.document import Document
from parlab.reports.facts import run_block
from parlab.reports.pivot import AGGREGATES, FINISHED, OOM, Record, doubts_of, field_named, fields_of, number_text
from parlab.reports.shapes import pivot_block, plain_value, runs_block
from parlab.reports.units import shown_unit

logger = logging.getLogger(__name__)


class DrawExperiment(Protocol):
    """Draws a figure of these runs."""

    def __call__(self, figure: Figure, runs: Sequence[Run], options: Options = ..., /) -> Drawing: ...


class Figures(NamedTuple):
    """How the figures of a report are drawn; pages provide it, since they read series and files."""

    draw: DrawExperiment
    of_run: Mapping[str, Callable[[Run, Attempt], Drawing]]
    """The figures of a run, by name."""


class _Loaded(NamedTuple):
    """The runs of one or several experiments, as rows and as records."""

    experiments: Sequence[Experiment]
    runs: Sequence[Run]
    records: Sequence[Record]


class Resolver:
    """Reads what the directives of one report ask for; an experiment that several name is read once."""

    def __init__(self, report: Report, figures: Figures) -> None:
        self.report, self.figures = report, figures
        self.findings: list[Finding] = []
        self._loaded: dict[tuple[str, str], _Loaded] = {}
        self._made: dict[str, Callable[[Directive], Block]] = {
            "figure": self._figure,
            "table pivot": self._pivot,
            "table runs": self._runs,
            "table run": self._run_table,
            "value": self._value,
            "config": self._config,
            "picture": self._picture,
            "panel": self._panel,
        }

    def block(self, found: Directive) -> Block:
        """Make what a directive stands for; whatever is wrong with it becomes words in its place."""
        if found.problem:
            return blocks.ProblemBlock(message=found.problem)
        try:
            return self._made[found.kind](found)
        except ValueError as problem:
            return blocks.ProblemBlock(message=str(problem))
        except Exception:
            # Numbers of any origin meet here: one that a chart cannot draw must not take the page with it.
            logger.exception("a directive of report %s could not be shown: %s", self.report.slug, found.source)
            return blocks.ProblemBlock(message="parlab could not make this; its log says why")

    def doubt(self, finding: Finding) -> int:
        """Number a finding in the order in which the report meets it."""
        if finding not in self.findings:
            self.findings.append(finding)
        return self.findings.index(finding) + 1

    def _load(self, options: Mapping[str, str]) -> _Loaded:
        key = options.get("experiment", ""), options.get("version", "")
        if key not in self._loaded:
            self._loaded[key] = self._read(*key)
        return self._loaded[key]

    def _read(self, names: str, version: str) -> _Loaded:
        experiments = [_experiment(slug) for slug in listed(names)] or (
            [self.report.experiment] if self.report.experiment else []
        )
        if not experiments:
            raise ValueError(
                "this report has no experiment of its own (any more); say which one: experiment=slug, as its address"
                " has it"
            )
        runs: list[Run] = []
        records: list[Record] = []
        for experiment in experiments:
            versions = selectors.experiment_versions(experiment, version)
            if version.isdecimal() and not (versions.selected and versions.selected.version == int(version)):
                raise ValueError(f"experiment {experiment.slug} has no version {version}")
            mine = selectors.experiment_runs(experiment, versions)
            doubts = selectors.run_doubts(selectors.experiment_findings(experiment), mine)
            beside = {"experiment": experiment.name} if len(experiments) > 1 else {}
            runs += mine
            records += [{**beside, **record} for record in selectors.run_records(mine, doubts)]
        return _Loaded(experiments, runs, records)

    def _chosen(self, options: Mapping[str, str]) -> tuple[_Loaded, list[Record]]:
        """Read the records that `where` and `run` leave; raises ValueError where none are left."""
        loaded = self._load(options)
        kept = chosen(loaded.records, options.get("where", ""), fields_of(loaded.records))
        wanted = number(options, "run")
        if wanted is not None:
            kept = [record for record in kept if record["run"] == wanted]
            if not kept:
                where = loaded.experiments[0].slug
                raise ValueError(f"experiment {where} has no run {wanted} any more, or another version has it")
        if not kept:
            raise ValueError(f"no run fits where={options.get('where', '')!r}" if "where" in options else "no runs yet")
        return loaded, kept

    def _figure(self, found: Directive) -> Block:
        loaded, kept = self._chosen(found.options)
        if "run" in found.options:
            drawing = self._run_figure(found.name, _run_of(loaded, kept[0]))
        elif found.name in EXPERIMENT_FIGURES:
            wanted = {id(record) for record in kept}
            runs = [run for run, record in zip(loaded.runs, loaded.records, strict=True) if id(record) in wanted]
            drawing = self._experiment_figure(found, runs)
        else:
            alone = " (of one run: add run=)" if found.name in self.figures.of_run else ""
            there = ", ".join(EXPERIMENT_FIGURES)
            raise ValueError(f"figure {found.name!r} is unknown{alone}; there are {there}")
        if drawing.figure is None:
            raise ValueError(drawing.empty or "there is nothing to draw")
        figure: dict[str, Any] = json.loads(drawing.figure.to_json())
        doubts = sorted({self.doubt(one) for record in kept for one in _all_doubts(record)})
        title = found.options.get("title") or str(figure["layout"].get("title", {}).get("text") or found.name)
        figure["layout"].setdefault("title", {})["text"] = title.replace("<", "&lt;")
        numbers = [drawing.table.header, *drawing.table.rows]
        return blocks.FigureBlock(
            title=title, figure=figure, caption=drawing.caption, numbers=json.loads(json.dumps(numbers)), doubts=doubts
        )

    def _experiment_figure(self, found: Directive, runs: Sequence[Run]) -> Drawing:
        wanted = {name: text for name, text in found.options.items() if name in Options._fields}
        figure = EXPERIMENT_FIGURES[found.name]
        if wanted and not figure.choices:
            raise ValueError(f"figure {figure.name} has fixed axes; remove {', '.join(wanted)}")
        return self.figures.draw(figure, runs, _options(wanted, selectors.run_points(runs)) if wanted else AUTO)

    def _run_figure(self, name: str, run: Run) -> Drawing:
        if name not in self.figures.of_run:
            raise ValueError(f"figure {name!r} of a run is unknown; there are {', '.join(self.figures.of_run)}")
        attempt = run.attempts.filter(number=run.attempt_number).first()
        if attempt is None:
            raise ValueError(f"run {run.number} has no curves: its figures were published without any")
        return self.figures.of_run[name](run, attempt)

    def _pivot(self, found: Directive) -> Block:
        return pivot_block(self._load(found.options).records, found.options, self.doubt)

    def _runs(self, found: Directive) -> Block:
        return runs_block(self._load(found.options).records, found.options, self.doubt)

    def _run_table(self, found: Directive) -> Block:
        return run_block(self._chosen(found.options)[1][0], found.options, self.doubt)

    def _value(self, found: Directive) -> Block:
        _, kept = self._chosen(found.options)
        options = found.options
        field = field_named(found.name, fields_of(kept)) if found.name in fields_of(kept) else None
        if field is None:
            field = field_named(found.name, fields_of(self._load(options).records))
        having = [r for r in kept if r.get(field) is not None and (r.get("state") == FINISHED or "run" in options)]
        if not having:
            raise ValueError(f"{field} was not measured in {'this run' if len(kept) == 1 else 'these runs'}")
        if len(having) > 1 and "aggregate" not in options:
            raise ValueError(
                f"{len(having)} runs have {field}; choose one with run= or where=, or say aggregate=median"
            )
        doubts = [self.doubt(one) for one in dict.fromkeys(d for r in having for d in doubts_of(r, field))]
        values = [r[field] for r in having]
        if not all(is_number(value) for value in values):
            words = ["OOM" if value == OOM else plain_value(value) for value in values]
            return blocks.ValueBlock(text=", ".join(dict.fromkeys(words)), doubts=doubts)
        aggregate = options.get("aggregate", "median")
        if aggregate not in AGGREGATES:
            raise ValueError(f"aggregate {aggregate!r} is unknown; use {', '.join(AGGREGATES)}")
        value = values[0] if len(values) == 1 else AGGREGATES[aggregate](values)
        unit = shown_unit(field, [value], options.get("unit", ""))
        decimals = number(options, "decimals", most=12)
        text = number_text(value / unit.factor, decimals, is_count=not unit.name)
        if not unit.name and decimals is None:
            text = plain_value(value)
        text += f"{SPACE}{unit.name}" if unit.name else ""
        return blocks.ValueBlock(text=text, exact=exact_quantity(value, unit.base).strip(), doubts=doubts)

    def _config(self, found: Directive) -> Block:
        loaded, kept = self._chosen(found.options)
        run = _run_of(loaded, kept[0])
        told = _nested(run.launch.get("arguments") or {}) if run.origin == Run.Origin.IMPORTED else run.resolved
        only = listed(found.options.get("only", ""))
        lacking = next((name for name in only if name not in told), None)
        if lacking is not None:
            raise ValueError(f"the configuration has no part {lacking!r}; there are {', '.join(told)}")
        shown = {name: told[name] for name in only} if only else told
        return blocks.CodeBlock(text=json.dumps(shown, indent=2, ensure_ascii=False))

    def _picture(self, found: Directive) -> Block:
        if len(found.name) < 6:
            raise ValueError(f"{found.name!r} is too short for the name of a picture; the gallery says it in full")
        pictures = Snapshot.objects.filter(Q(kind=Snapshot.Kind.IMAGE), digest__startswith=found.name)[:2]
        if len(pictures) != 1:
            said = "names several pictures" if pictures else "is no picture of any gallery, or it was deleted"
            raise ValueError(f"{found.name!r} {said}; copy the directive from the gallery")
        return _picture_block(pictures[0], found)

    def _panel(self, found: Directive) -> Block:
        loaded, kept = self._chosen(found.options)
        run = _run_of(loaded, kept[0])
        drawn = run.snapshots.filter(kind=Snapshot.Kind.IMAGE, content__panel=found.name).order_by("-pk").first()
        if drawn is None:
            raise ValueError(
                f"the panel {found.name} of run {run.number} was not drawn yet; draw it on the page Pictures"
            )
        return _picture_block(drawn, found)


def resolve(document: Document, *, report: Report, figures: Figures) -> Content:
    """Make all blocks of a report, and list the findings about its numbers."""
    resolver = Resolver(report, figures)
    made = {found.source: resolver.block(found) for found in document.directives() if not found.problem}
    return Content(blocks=made, order=list(made), findings=[_finding(finding) for finding in resolver.findings])


def _finding(finding: Finding) -> blocks.Finding:
    reason = finding.acknowledged_reason if finding.is_acknowledged else ""
    return blocks.Finding(severity=finding.severity, message=finding.message, rule=finding.rule, acknowledged=reason)


def _options(wanted: Mapping[str, str], points: Sequence[RunPoint]) -> Options:
    """Read what a figure shall show; raises ValueError, with what there is, for what makes no sense."""
    y = wanted.get("y", DEFAULT)
    if y not in MEASURES:
        raise ValueError(f"y={y!r} is unknown; there are {', '.join(MEASURES)}")
    axes = list(dict.fromkeys(axis for point in points for axis in point.values))
    x = wanted.get("x", "")
    x = x if x in ("", GPUS, RUN) else field_named(x, axes)
    scales: dict[str, Scale] = {}
    for name in ("x_scale", "y_scale"):
        scale = next((known for known in SCALES if known == wanted.get(name, "auto")), None)
        if scale is None:
            raise ValueError(f"{name}={wanted[name]!r} is unknown; there are {', '.join(SCALES)}")
        scales[name] = scale
    by = [field_named(axis, axes) for axis in listed(wanted.get("by", ""))]
    return Options(y=y, x=x, by=by, x_scale=scales["x_scale"], y_scale=scales["y_scale"])


def _picture_block(snapshot: Snapshot, found: Directive) -> Block:
    content = snapshot.content
    if "sha256" not in content or not content.get("width"):
        raise ValueError("this picture is only referred to by an imported page; it did not lie beside it")
    return blocks.PictureBlock(
        sha256=content["sha256"],
        media_type=content["media_type"],
        width=content["width"],
        height=content["height"],
        caption=found.options.get("caption", content.get("caption", "")),
        shown_width=number(found.options, "width", most=4000),
    )


def _experiment(slug: str) -> Experiment:
    found = Experiment.objects.filter(slug=slug).first()
    if found is None:
        raise ValueError(f"there is no experiment {slug!r} (any more); name another one, or take this away")
    return found


def _run_of(loaded: _Loaded, record: Record) -> Run:
    return next(run for run, known in zip(loaded.runs, loaded.records, strict=True) if known is record)


def _all_doubts(record: Record) -> list[Finding]:
    known: Mapping[str, Sequence[Finding]] = record.get("doubts") or {}
    return list(dict.fromkeys(one for found in known.values() for one in found))


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Put dotted arguments back into the levels that a file has them in."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        level = nested
        *parts, last = name.split(".")
        for part in parts:
            below = level.setdefault(part, {})
            if not isinstance(below, dict):
                return dict(flat)  # the name of a value is also that of a level: show them as they are
            level = below
        level[last] = value
    return nested
