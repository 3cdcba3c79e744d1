"""What tells the runs of an experiment apart: a name made of what differs, and the look of their marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.axes import GPUS, SIZE_AXES, is_network
from parlab.charts.fields import value_label
from parlab.charts.format import field_value
from parlab.charts.points import in_order, is_number
from parlab.charts.svg import COLOURS, Look
from parlab.lab.models import Run

SEPARATOR = " · "
MAX_NAMED = 4
"""Fields that a name holds; the rest is in its hover text."""
MEANING = {"gpipe": 1, "1f1b": 2, "zb-h1": 3}
"""Colours that mean the same on every page."""
_DISTINCT = 4
"""Colours that are told apart beside each other; further values also change dash and mark."""
_DASHES = 3
_SHORT = {
    "train.micro_batch_size": "mb {}",
    "train.global_batch_size": "gb {}",
    "parallel.tensor_parallel_size": "TP {}",
    "parallel.pipeline_parallel_size": "PP {}",
    "parallel.data_parallel_size": "DP {}",
    "parallel.context_parallel_size": "CP {}",
    "parallel.expert_parallel_size": "EP {}",
    "parallel.zero_stage": "ZeRO {}",
    "parallel.schedule": "{}",
    "parallel.engine": "{}",
    "train.precision": "{}",
    "train.recompute": "recompute {}",
    "train.seed": "seed {}",
    "cluster.nodes": "{} nodes",
    "sharding.sharding_dim": "dim {}",
    "network": "{}",
    "commit": "commit {}",
    GPUS: "{} GPUs",
}
_NOT_SETTINGS = (
    "launcher.",
    "profile.",
    "cluster.pool",
    "train.iterations",
    "train.warmup_steps",
    "train.log_interval",
)
"""Fields that say how a run was made and not what it is; they name it only if nothing else does."""


class Identity(NamedTuple):
    """What tells a run apart from the others of its experiment."""

    name: str
    """`1f1b · mb 4`: only what differs; `#3` if nothing does."""
    look: Look
    values: Mapping[str, Any]
    """The fields that differ, with the values of this run, the axes of the sweep first."""
    group: str
    """The value that sets the colour, as text; empty without one."""


def short_value(field: str, value: Any) -> str:
    """Return a field with its value in the fewest words that are clear: `mb 4`, `1f1b`, `TP 2`."""
    if field == GPUS and value == 1:
        return "1 GPU"
    form = _SHORT.get(field)
    if form and value is not None:
        return form.format(field_value(value))
    return (
        field_value(value)
        if isinstance(value, str) and len(value) > 1 and not value.isdigit()
        else value_label(field, value)
    )


def identities(runs: Sequence[Run]) -> dict[int, Identity]:
    """Return the identity of each run, by its id. The runs are those of one experiment, with `resolved` and `point`."""
    swept = dict.fromkeys(axis for run in runs for axis in run.point)
    several = len({run.config_id for run in runs}) > 1 or any(run.origin != Run.Origin.MEASURED for run in runs)
    # The runs of one version differ in nothing but the axes of its sweep.
    settings = {run.pk: _settings(run) if several else _swept(run, swept) for run in runs}
    fields = _differing(swept, settings)
    values = {pk: {field: own[field] for field in fields if field in own} for pk, own in settings.items()}
    leading = _leading(fields, list(values.values()))
    groups = {pk: tuple(own.get(field) for field in leading) for pk, own in values.items()}
    looks = _looks(groups, [field for field in fields if field not in leading], values)
    named = {run.pk: _name(run, values[run.pk]) for run in runs}
    counts = Counter(named.values())
    return {
        run.pk: Identity(
            named[run.pk] if named[run.pk] and counts[named[run.pk]] == 1 else _numbered(named[run.pk], run),
            looks[run.pk],
            values[run.pk],
            _told({field: values[run.pk].get(field) for field in leading}),
        )
        for run in runs
    }


def _numbered(name: str, run: Run) -> str:
    return f"{name}{SEPARATOR}#{run.number}" if name else f"#{run.number}"


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run by dotted field, the axes of its sweep first."""
    settings = dict(run.point)
    if run.gpus and run.origin != Run.Origin.MEASURED:
        settings.setdefault(GPUS, int(run.gpus))
    for section, fields in run.resolved.items():
        if isinstance(fields, Mapping):
            for name, value in fields.items():
                settings.setdefault(f"{section}.{name}", value)
    return _with_commit(settings)


def _with_commit(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the commit that a command runs out of its arguments, which tell people nothing else apart."""
    argv = settings.get(_ARGUMENTS)
    if not isinstance(argv, list) or _OPTION not in argv[:-1]:
        return settings
    place = argv.index(_OPTION) + 1
    return {**settings, _ARGUMENTS: [*argv[:place], *argv[place + 1 :]], "commit": str(argv[place])[:7]}


_ARGUMENTS, _OPTION = "command.argv", "--commit"
"""Field of a configuration, and the argument that is followed by the commit to run (runners/node/launch)."""


def _swept(run: Run, axes: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a run that its sweep varies; one that its point lacks is that of the configuration."""
    settings = dict(run.point)
    for axis in axes:
        section, _, name = axis.partition(".")
        fields = run.resolved.get(section)
        if axis not in settings and isinstance(fields, Mapping) and name in fields:
            settings[axis] = fields[name]
    return settings


def _differing(swept: Mapping[str, None], settings: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return the fields in which runs differ: swept ones first, then those that versions or files changed."""
    rest = dict.fromkeys(field for own in settings.values() for field in own if field not in swept)
    differing = [field for field in [*swept, *rest] if len({repr(own.get(field)) for own in settings.values()}) > 1]
    telling = [field for field in differing if field in swept or not field.startswith(_NOT_SETTINGS)]
    return _fewest(telling or differing, list(settings.values()))


def _fewest(fields: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields without those that tell no further runs apart than the fields before them."""
    kept: list[str] = []
    known = [""] * len(settings)
    for field in fields:
        finer = [f"{before}|{own.get(field)!r}" for before, own in zip(known, settings, strict=True)]
        # The sizes of a layout are told together, also where one of them would do.
        if len(set(finer)) > len(set(known)) or (field in SIZE_AXES and any(other in SIZE_AXES for other in kept)):
            kept.append(field)
            known = finer
    return kept


def _leading(fields: Sequence[str], values: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields that set the colour: the first one whose values are words, else the first one.

    The sizes of a layout count as one field.
    """
    words = [field for field in fields if not all(is_number(own.get(field)) for own in values)]
    telling = [field for field in words if field not in SIZE_AXES and not is_network(field)]
    first = next(iter([*telling, *words, *fields]), "")
    return tuple(field for field in fields if field in SIZE_AXES) if first in SIZE_AXES else (first,) if first else ()


def _looks(
    groups: Mapping[int, tuple[Any, ...]], others: Sequence[str], values: Mapping[int, Mapping[str, Any]]
) -> dict[int, Look]:
    colours = _colours(list(groups.values()))
    kinds = {pk: tuple(repr(own.get(field)) for field in others) for pk, own in values.items()}
    order = {kind: place for place, kind in enumerate(_sorted_kinds(others, values, kinds))}
    looks = {}
    for pk, group in groups.items():
        colour, turn = colours[repr(group)]
        shape = (order[kinds[pk]] + turn) % _DASHES
        looks[pk] = Look(colour, shape, shape)
    return looks


def _sorted_kinds(
    others: Sequence[str], values: Mapping[int, Mapping[str, Any]], kinds: Mapping[int, tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return the combinations of the other fields, numbers in ascending order."""
    places = [
        {repr(value): place for place, value in enumerate(in_order(own.get(field) for own in values.values()))}
        for field in others
    ]
    distinct = list(dict.fromkeys(kinds.values()))
    return sorted(distinct, key=lambda kind: [place[part] for place, part in zip(places, kind, strict=True)])


def _colours(groups: Sequence[tuple[Any, ...]]) -> dict[str, tuple[int, int]]:
    """Return by group its colour, and how often the colours were used up before it."""
    distinct = {repr(group): str(group[0]).lower() if len(group) == 1 else "" for group in groups}
    taken = {MEANING[text] for text in distinct.values() if text in MEANING}
    free = [colour for colour in range(1, COLOURS + 1) if colour not in taken][:_DISTINCT]
    chosen, used = {}, 0
    for key, text in distinct.items():
        if text in MEANING:
            chosen[key] = (MEANING[text], 0)
            continue
        chosen[key] = (free[used % len(free)], used // len(free))
        used += 1
    return chosen


def _told(values: Mapping[str, Any]) -> str:
    """Return settings in short; of a layout only the sizes beyond 1."""
    sizes = {field: value for field, value in values.items() if field in SIZE_AXES}
    told = {field: value for field, value in values.items() if len(sizes) < 2 or sizes.get(field) != 1}
    parts = [short_value(field, value) for field, value in told.items()]
    if sizes and not parts:
        return "1 rank"
    return SEPARATOR.join(parts if len(parts) <= MAX_NAMED else [*parts[: MAX_NAMED - 1], "…"])


def _name(run: Run, values: Mapping[str, Any]) -> str:
    if run.label and not run.point and run.origin != Run.Origin.MEASURED:
        return run.shown_label
    parts = [_told(values), f"repeat {run.repeat}" if run.repeat > 1 else ""]
    return SEPARATOR.join(filter(None, parts))
