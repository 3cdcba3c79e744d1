"""Endpoints below `runs/` and `metrics/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Experiment, TrackedRun
from parlab.series import store
from parlab.tracking import runs as services
from parlab.tracking.runs import Point

from .entities import experiment_of, metric_json, page_of, run_info, run_json, run_of
from .protocol import JSON, Call, clean, entries, integer, invalid, missing, real
from .search import conditions_of, filtered_runs, ordered_runs

KEY_LENGTH = 250
PARAMETER_LENGTH = 6_000
TAG_LENGTH = 8_000
MAX_METRICS, MAX_PARAMETERS, MAX_TAGS, MAX_ENTITIES = 1_000, 100, 100, 1_000
MAX_STEP = 2**31 - 1
MAX_TIME_MS = 10**14
_KEY = re.compile(r"[/\w.\- :]*")
_VIEWS = ("ACTIVE_ONLY", "DELETED_ONLY", "ALL")
_RUN_NAME = "mlflow.runName"


# --- life ------------------------------------------------------------------------------------------------------------


def create(call: Call) -> JSON:
    experiment = experiment_of(call.text("experiment_id", "0"), call.user)
    if experiment.archived_at is not None:
        raise invalid(f"Experiment {experiment.name!r} is deleted and must be restored before it takes runs")
    tags = dict(_text_pair(item, f"tags[{index}]", TAG_LENGTH) for index, item in enumerate(entries(call, "tags")))
    name = call.text("run_name", "", at_most=500) or tags.get(_RUN_NAME, "")
    if name:
        tags[_RUN_NAME] = name
    tracked = services.tracked_run_start(
        experiment=experiment,
        user=call.user,
        name=name,
        user_name=call.text("user_id", tags.get("mlflow.user", ""), at_most=256),
        start_ms=call.whole("start_time", int(timezone.now().timestamp() * 1000)),
        tags=tags,
    )
    return {"run": run_json(tracked)}


def get(call: Call) -> JSON:
    return {"run": run_json(run_of(call))}


def update(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    status = call.text("status", "") or None
    if status is not None and (integer(status) is not None or status not in TrackedRun.Status.values):
        raise invalid(
            f"Invalid value {status[:40]!r} for parameter 'status'; use one of {', '.join(TrackedRun.Status.values)}"
        )
    end_ms = call.whole("end_time", -1)
    name = call.text("run_name", "", at_most=500) or None
    with transaction.atomic():
        tracked = services.tracked_run_update(
            tracked=tracked, status=status, end_ms=end_ms if end_ms >= 0 else None, name=name
        )
        if name:
            services.tags_set(tracked=tracked, tags={_RUN_NAME: name})
    return {"run_info": run_info(tracked)}


def delete(call: Call) -> JSON:
    services.tracked_run_delete(tracked=run_of(call))
    return {}


def restore(call: Call) -> JSON:
    services.tracked_run_restore(tracked=run_of(call))
    return {}


def search(call: Call) -> JSON:
    experiments = [_experiment_key(value, call) for value in call.items("experiment_ids")]
    rows = TrackedRun.objects.select_related("run__experiment").prefetch_related("metrics", "parameters", "tags")
    rows = rows.filter(run__experiment__in=experiments)
    view = call.text("run_view_type", "ACTIVE_ONLY")
    if view not in _VIEWS:
        raise invalid(f"Invalid value {view[:40]!r} for parameter 'run_view_type'; use one of {', '.join(_VIEWS)}")
    if view != "ALL":
        rows = rows.filter(deleted_at__isnull=view == "ACTIVE_ONLY")
    rows = ordered_runs(filtered_runs(rows, conditions_of(call.data)), call.items("order_by"))
    page = page_of(rows, call, default=1_000, at_most=50_000)
    answer: JSON = {"runs": [run_json(tracked) for tracked in page.rows]}
    return answer | ({"next_page_token": page.token} if page.token else {})


def _experiment_key(value: Any, call: Call) -> Experiment | int:
    """Read an experiment ID; one that does not exist matches no run."""
    if str(value) == "0":
        return experiment_of("0", call.user)
    number = integer(value)
    if number is None:
        raise invalid(f"Invalid experiment ID {str(value)[:80]!r}; use the IDs that experiments/search returns")
    return number


# --- data ------------------------------------------------------------------------------------------------------------


def log_metric(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    services.points_append(tracked=tracked, points=[_point(call.data, "")])
    return {}


def log_parameter(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    services.parameters_set(tracked=tracked, parameters=dict([_text_pair(call.data, "", PARAMETER_LENGTH)]))
    return {}


def set_tag(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    key, value = _text_pair(call.data, "", TAG_LENGTH)
    _tags_set(tracked, {key: value})
    return {}


def delete_tag(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    key = call.text("key", at_most=KEY_LENGTH)
    if not tracked.tags.filter(key=key).delete()[0]:
        raise missing(f"tag of run {tracked.uuid} with key", key)
    return {}


def log_batch(call: Call) -> JSON:
    """Store metrics, parameters and tags of one request, all or none of them."""
    tracked = run_of(call, is_change=True)
    metrics, parameters, tags = entries(call, "metrics"), entries(call, "params"), entries(call, "tags")
    for name, items, limit in (
        ("metrics", metrics, MAX_METRICS),
        ("params", parameters, MAX_PARAMETERS),
        ("tags", tags, MAX_TAGS),
    ):
        if len(items) > limit:
            raise invalid(f"A batch of {len(items)} {name} exceeds the limit of {limit}; send several batches")
    total = len(metrics) + len(parameters) + len(tags)
    if total > MAX_ENTITIES:
        raise invalid(f"A batch of {total} entries exceeds the limit of {MAX_ENTITIES}; send several batches")
    points = [_point(item, f"metrics[{index}].") for index, item in enumerate(metrics)]
    pairs = [_text_pair(item, f"params[{index}]", PARAMETER_LENGTH) for index, item in enumerate(parameters)]
    if len({key for key, _ in pairs}) < len(pairs):
        doubled = sorted({key for key, _ in pairs if [other for other, _ in pairs].count(key) > 1})
        raise invalid(f"Duplicate parameter keys in one batch: {', '.join(doubled)[:500]}; send each key once")
    labels = dict(_text_pair(item, f"tags[{index}]", TAG_LENGTH) for index, item in enumerate(tags))
    with transaction.atomic():
        services.parameters_set(tracked=tracked, parameters=dict(pairs))
        _tags_set(tracked, labels)
        services.points_append(tracked=tracked, points=points)
    return {}


def log_inputs(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    datasets = entries(call, "datasets")
    for index, item in enumerate(datasets):
        dataset = item.get("dataset")
        if not isinstance(dataset, Mapping) or not dataset.get("name") or not dataset.get("digest"):
            raise invalid(f"Invalid value for parameter 'datasets[{index}].dataset': expected name and digest")
    inputs = [*tracked.inputs, *(item for item in datasets if item not in tracked.inputs)]
    TrackedRun.objects.filter(pk=tracked.pk).update(inputs=inputs[:1_000])
    return {}


def log_outputs(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    TrackedRun.objects.filter(pk=tracked.pk).update(outputs=[*tracked.outputs, *entries(call, "models")][:1_000])
    return {}


def log_model(call: Call) -> JSON:
    """Accept the description of a logged model and keep it as a tag, as MLflow's own server does."""
    tracked = run_of(call, is_change=True)
    model = call.text("model_json", at_most=10**6)
    previous = tracked.tags.filter(key="mlflow.log-model.history").values_list("value", flat=True).first()
    history = f"{previous[:-1]}, {model}]" if previous else f"[{model}]"
    services.tags_set(tracked=tracked, tags={"mlflow.log-model.history": history[: 10**6]})
    return {}


def search_models(_call: Call) -> JSON:
    """Answer that there are no logged models: clients ask before they list the artifacts of a run."""
    return {"models": []}


def _tags_set(tracked: TrackedRun, tags: Mapping[str, str]) -> None:
    services.tags_set(tracked=tracked, tags=tags)
    if _RUN_NAME in tags:
        services.tracked_run_update(tracked=tracked, name=tags[_RUN_NAME])


def _key(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(f"Missing value for required parameter '{place}'")
    if len(value) > KEY_LENGTH:
        raise invalid(f"Invalid value for '{place}': {len(value)} characters exceed the maximum length of {KEY_LENGTH}")
    if not _KEY.fullmatch(value) or value.startswith("/") or ".." in value.split("/") or "." in value.split("/"):
        raise invalid(
            f"Invalid value {value[:80]!r} for '{place}'; use letters, digits, _, -, ., spaces, : and / (no '..')"
        )
    return value


def _text_pair(item: Mapping[str, Any], place: str, at_most: int) -> tuple[str, str]:
    prefix = f"{place}." if place else ""
    key, value = _key(item.get("key"), f"{prefix}key"), item.get("value", "")
    value = value if isinstance(value, str) else "" if value is None else str(value)
    if len(value) > at_most:
        raise invalid(
            f"Invalid value for '{prefix}value' of {key!r}: {len(value)} characters exceed the maximum length of"
            f" {at_most}"
        )
    return key, clean(value)


def _point(item: Mapping[str, Any], place: str) -> Point:
    key, value = _key(item.get("key"), f"{place}key"), real(item.get("value"))
    if value is None:
        raise invalid(
            f"Invalid value {str(item.get('value'))[:80]!r} for parameter '{place}value' of metric {key!r}: expected a"
            " number"
        )
    timestamp, step = integer(item.get("timestamp", 0)), integer(item.get("step") or 0)
    if timestamp is None or not 0 <= timestamp < MAX_TIME_MS:
        raise invalid(
            f"Invalid value {str(item.get('timestamp'))[:80]!r} for parameter '{place}timestamp': expected unix"
            " milliseconds"
        )
    if step is None or not -MAX_STEP <= step <= MAX_STEP:
        raise invalid(f"Invalid value {str(item.get('step'))[:80]!r} for parameter '{place}step': expected an integer")
    return Point(key, value, timestamp, step)


# --- metrics ---------------------------------------------------------------------------------------------------------


def history(call: Call) -> JSON:
    tracked = run_of(call)
    key = call.text("metric_key", at_most=KEY_LENGTH)
    page = page_of(_history(tracked, key), call, default=25_000, at_most=10**6)
    answer: JSON = {"metrics": [metric_json(key, *point) for point in page.rows]}
    return answer | ({"next_page_token": page.token} if page.token else {})


def _history(
    tracked: TrackedRun, key: str, *, first_step: int | None = None, last_step: int | None = None
) -> list[tuple[float, int, int]]:
    """Return value, time (unix ms) and step of each point of a metric."""
    attempt_id = tracked.run.current_attempt().pk
    columns = store.read(attempt_id, key, rank=0, first_step=first_step, last_step=last_step)
    times = np.rint(columns.times * 1000).astype(np.int64).tolist()
    return list(zip(columns.values.tolist(), times, columns.steps.tolist(), strict=True))


def history_bulk(call: Call) -> JSON:
    """Return the points of one metric of several runs, as MLflow's compare page asks for them."""
    runs = _runs_named(call, "run_id")
    key = call.text("metric_key", at_most=KEY_LENGTH)
    limit = call.whole("max_results", 25_000, at_least=1, at_most=25_000)
    metrics: list[JSON] = []
    for tracked in runs:
        points = _history(tracked, key)[: limit - len(metrics)]
        metrics += [{**metric_json(key, *point), "run_id": tracked.uuid} for point in points]
    return {"metrics": metrics}


def history_bulk_interval(call: Call) -> JSON:
    """Return the points of one metric of several runs between two steps, thinned to max_results a run."""
    runs = _runs_named(call, "run_ids")
    key = call.text("metric_key", at_most=KEY_LENGTH)
    first = call.whole("start_step", -MAX_STEP, at_least=-MAX_STEP)
    last = call.whole("end_step", MAX_STEP, at_least=-MAX_STEP)
    limit = call.whole("max_results", 2_500, at_least=2, at_most=2_500)
    metrics: list[JSON] = []
    for tracked in runs:
        points = _history(tracked, key, first_step=first, last_step=last)
        stride = max(1, -(-len(points) // limit))
        metrics += [{**metric_json(key, *point), "run_id": tracked.uuid} for point in points[::stride]]
    return {"metrics": metrics}


def _runs_named(call: Call, name: str) -> list[TrackedRun]:
    """Return the runs whose IDs a field lists, 1 to 100 of them, in its order."""
    run_ids = call.data.get(name) or []
    run_ids = run_ids if isinstance(run_ids, list) else [run_ids]
    if not 1 <= len(run_ids) <= 100:
        raise invalid(f"{len(run_ids)} run IDs in parameter '{name}'; use 1 to 100")
    return _runs_by_id(run_ids)


def _runs_by_id(run_ids: Sequence[Any]) -> list[TrackedRun]:
    uuids = [str(run_id) for run_id in run_ids]
    rows = {tracked.uuid: tracked for tracked in TrackedRun.objects.select_related("run").filter(uuid__in=uuids)}
    absent = [uuid for uuid in uuids if uuid not in rows]
    if absent:
        raise missing("run with ID", absent[0])
    return [rows[uuid] for uuid in uuids]
