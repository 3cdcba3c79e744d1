"""What the page of the sweep builder shows for a draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import significant
from parlab.lab.forms.config_layout import unused_fields
from parlab.lab.forms.presets import PRESETS
from parlab.lab.models import Config, Experiment, Node
from parlab.pages.forms.sweep_preview import NO_RUNS, PointRow, Preview, changes_between, points_preview
from parlab.pages.rows.predictions import Pools
from runners.config import ENGINES, Problem

from .axes import value_text
from .checked import Checked, checked
from .draft import Draft, as_json
from .fields import BuilderField, builder_fields, builder_sections
from .suggestions import suggestions

_LONG_S = 1_800.0
_LEAST_HOURS = 0.01
_FOLDED = ("cluster", "slurm", "kubernetes", "network", "emulation", "profile", "checkpoint", "launcher")
"""Sections that are folded while all of their fields have their defaults."""


class FieldRow(NamedTuple):
    field: BuilderField
    text: str
    is_used: bool
    is_varied: bool
    errors: list[str]

    @property
    def is_default(self) -> bool:
        return self.text == self.field.default_text

    @property
    def options(self) -> list[str]:
        """Choices, with the present text even if it is none of them."""
        choices = list(self.field.choices)
        return choices if self.text in choices or (not self.text and self.field.is_optional) else [*choices, self.text]


class SectionRow(NamedTuple):
    name: str
    title: str
    help: str
    rows: list[FieldRow]

    @property
    def is_used(self) -> bool:
        return any(row.is_used for row in self.rows)

    @property
    def is_open(self) -> bool:
        return self.name not in _FOLDED or any(row.errors or not row.is_default for row in self.rows)


class Mistake(NamedTuple):
    """One problem, with the id of the input that it is about."""

    html_id: str
    title: str
    message: str


class MatrixRow(NamedTuple):
    """A point with one text for each varied field."""

    point: PointRow
    texts: list[str]
    seconds: float | None
    """Predicted time of all iterations."""


class Totals(NamedTuple):
    """Sums over the points that can run and have a prediction."""

    predicted: int
    seconds: float
    gpu_seconds: float
    cost: float | None
    largest_bytes: float

    @property
    def is_long(self) -> bool:
        """Whether a launch takes so long that it should be noticed before."""
        return self.seconds > _LONG_S

    @property
    def gpu_hours_text(self) -> str:
        hours = self.gpu_seconds / 3600
        return significant(hours, 2) if hours >= _LEAST_HOURS else f"less than {_LEAST_HOURS:g}"


def builder_context(
    draft: Draft,
    *,
    experiment: Experiment | None,
    latest: Config | None,
    problems: Sequence[Problem] = (),
) -> dict[str, Any]:
    """Return all that the page shows; `problems` are those of other inputs than fields."""
    reading = checked(draft)
    pools = Pools()
    runs = {run.point_digest: run for run in latest.runs.all()} if latest and _is_same(latest, reading) else NO_RUNS
    preview = points_preview(reading.points, reading.data, runs, pools) if reading.points else None
    unused = unused_fields(reading.data, queue_pools=Node.objects.queue_pools())
    all_problems = [*problems, *reading.problems]
    errors, shown_json = _errors(all_problems), as_json(reading.data, reading.sweep)
    engine = draft.values["parallel.engine"]
    return {
        "draft": draft,
        "reading": reading,
        "experiment": experiment,
        "latest": latest,
        "axes": reading.axes,
        "axis_fields": [row.field for row in reading.axes],
        "sections": _sections(draft, unused, errors),
        "mistakes": [_mistake(problem, draft) for problem in all_problems],
        "errors": errors,
        "preview": preview,
        "matrix": _matrix(preview, reading) if preview else [],
        "totals": _totals(preview) if preview else None,
        "suggestions": suggestions(preview.points, pools) if preview else [],
        "changes": changes_between(latest, reading.data, reading.sweep),
        "json": shown_json,
        "marks": {"errors": errors, "unused": sorted(unused), "json": shown_json},
        "engine": engine,
        "engine_is_unknown": engine not in ENGINES,
        "engine_error": "; ".join(errors.get("parallel.engine", [])),
        "purpose": ENGINES[engine].purpose if engine in ENGINES else "is not known here",
        "engines": [(name, row.purpose) for name, row in ENGINES.items()],
        "presets": _preset_groups(),
    }


def _is_same(latest: Config, reading: Checked) -> bool:
    """Whether saving would keep the version, so that its runs are those of the points."""
    return bool(latest.data == reading.data and latest.sweep == reading.sweep)


def _sections(draft: Draft, unused: set[str], errors: Mapping[str, list[str]]) -> list[SectionRow]:
    return [
        SectionRow(
            section.name,
            section.title,
            section.help,
            [
                FieldRow(
                    entry,
                    draft.values[entry.path],
                    entry.path not in unused,
                    entry.path in draft.varied,
                    errors.get(entry.path, []),
                )
                for entry in section.fields
            ],
        )
        for section in builder_sections()
    ]


def _errors(problems: Sequence[Problem]) -> dict[str, list[str]]:
    """Return field -> messages; problems inside a list or mapping belong to their field."""
    errors: dict[str, list[str]] = {}
    for problem in problems:
        errors.setdefault(_field_of(problem), []).append(problem.message)
    return errors


def _field_of(problem: Problem) -> str:
    return ".".join(problem.field.split(".")[:2])


def _mistake(problem: Problem, draft: Draft) -> Mistake:
    path = _field_of(problem)
    entry = builder_fields().get(path)
    if entry is None:
        return Mistake(
            path or "axes", {"name": "Name", "pasted": "JSON or command line"}.get(path, ""), problem.message
        )
    html_id = f"a-{path.replace('.', '-')}" if path in draft.varied else entry.html_id
    return Mistake(html_id, entry.label, problem.message)


def _matrix(preview: Preview, reading: Checked) -> list[MatrixRow]:
    paths = [row.axis.path for row in reading.axes]
    return [
        MatrixRow(
            point,
            [value_text(builder_fields()[path], point.values[path]) for path in paths],
            point.expected.step_time_s * point.config.train.iterations * point.repeats
            if point.config and point.expected and point.expected.step_time_s is not None
            else None,
        )
        for point in preview.points
    ]


def _totals(preview: Preview) -> Totals | None:
    predicted = [
        (point.config, point.expected, point.repeats)
        for point in preview.points
        if point.expected and point.expected.step_time_s
    ]
    if not predicted:
        return None
    costs = [None if expected.cost is None else expected.cost * repeats for _, expected, repeats in predicted]
    return Totals(
        len(predicted),
        sum((e.step_time_s or 0) * (config.train.iterations if config else 0) * n for config, e, n in predicted),
        3600 * sum((expected.gpu_hours or 0) * repeats for _, expected, repeats in predicted),
        sum(cost for cost in costs if cost is not None) if any(cost is not None for cost in costs) else None,
        max(expected.memory_bytes or 0 for _, expected, _ in predicted),
    )


def _preset_groups() -> list[tuple[str, list[tuple[str, str]]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for key, preset in PRESETS.items():
        groups.setdefault(preset.group, []).append((key, preset.title))
    return list(groups.items())
