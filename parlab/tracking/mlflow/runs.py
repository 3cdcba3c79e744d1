"""Endpoints below `runs/` and `metrics/`."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from parlab.lab.models import Experiment, TrackedRun
from parlab.lab.services import storable
from parlab.series import store
from parlab.tracking import runs as services

from .entities import experiment_of, metric_json, page_of, run_info, run_json, run_of
from .models import metrics_note
from .points import KEY_LENGTH, MAX_STEP, PARAMETER_LENGTH, TAG_LENGTH, points_of, text_pair
from .protocol import JSON, Call, MlflowError, entries, integer, invalid, invalid_value, required
from .search import conditions_of, filtered_runs, ordered_runs

MAX_METRICS, MAX_PARAMETERS, MAX_TAGS, MAX_ENTITIES = 1_000, 100, 100, 1_000
MAX_INPUTS = 1_000
_DATASET_LENGTHS = {"name": 500, "digest": 36, "source": 65_535, "schema": 1_048_575, "profile": 16_777_215}
MAX_RUNS = 100
"""Runs whose histories one request reads."""
VIEWS = ("ACTIVE_ONLY", "DELETED_ONLY", "ALL")
STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
_RUN_NAME, _HISTORY = "mlflow.runName", "mlflow.log-model.history"
_ADJECTIVES = (
    "amber brisk calm clever eager fair gentle keen lively merry neat proud quick quiet rare steady swift wise"
)
_NOUNS = "badger crane dolphin falcon finch gecko heron ibex lynx marten otter owl puffin raven seal swan tern wren"


def random_name() -> str:
    """Return a name for a run without one, as MLflow's clients expect."""
    return f"{random.choice(_ADJECTIVES.split())}-{random.choice(_NOUNS.split())}-{random.randint(0, 999)}"


# --- life ------------------------------------------------------------------------------------------------------------


def create(call: Call) -> JSON:
    experiment = experiment_of(call.text("experiment_id", "0"), call)
    if experiment.archived_at is not None:
        raise invalid(
            f"The experiment {experiment.name!r} must be in the 'active' state. Current state is deleted; restore it"
        )
    tags = dict(text_pair(item, f"tags[{index}]", TAG_LENGTH) for index, item in enumerate(entries(call, "tags")))
    stated, tagged = call.text("run_name", "", at_most=500), tags.get(_RUN_NAME, "")
    if stated and tagged and stated != tagged:
        raise invalid(
            "Both 'run_name' argument and 'mlflow.runName' tag are specified, but with different values"
            f" (run_name={stated!r}, mlflow.runName={tagged!r})."
        )
    name = tags[_RUN_NAME] = stated or tagged or random_name()
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
    status = call.choice("status", STATUSES) if call.data.get("status") else None
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
    found = TrackedRun.objects.select_related("run__experiment").prefetch_related("metrics", "parameters", "tags")
    rows: QuerySet[TrackedRun] = found.filter(run__experiment__in=experiments)
    view = call.choice("run_view_type", VIEWS)
    is_active = Q(deleted_at=None, run__experiment__archived_at=None)
    if view != "ALL":
        rows = rows.filter(is_active if view == "ACTIVE_ONLY" else ~is_active)
    rows = ordered_runs(filtered_runs(rows, conditions_of(call.data)), call.items("order_by"))
    page = page_of(rows, call, default=1_000, at_most=50_000)
    answer: JSON = {"runs": [run_json(tracked) for tracked in page.rows]}
    return answer | ({"next_page_token": page.token} if page.token else {})


def _experiment_key(value: Any, call: Call) -> Experiment | int:
    """Read an experiment ID; one that does not exist matches no run."""
    if str(value) == "0":
        return experiment_of("0", call)
    number = integer(value)
    if number is None:
        raise invalid(f"Invalid experiment ID {str(value)[:80]!r}. Experiment ID must be a valid integer.")
    return number


# --- data ------------------------------------------------------------------------------------------------------------


def log_metric(call: Call) -> JSON:
    tracked = run_of(call, is_change=True, is_light=True)
    for name in ("key", "value", "timestamp"):
        if call.data.get(name) is None:
            raise required(name)
    _points_store(call, tracked, [call.data], "")
    return {}


def _points_store(call: Call, tracked: TrackedRun, items: Sequence[Mapping[str, Any]], place: str) -> None:
    services.points_append(tracked=tracked, points=points_of(items, place), is_repeatable=True)
    if b'"model_id"' in call.http.body:
        metrics_note(tracked, items)


def log_parameter(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    services.parameters_set(tracked=tracked, parameters=dict([text_pair(call.data, "", PARAMETER_LENGTH)]))
    return {}


def set_tag(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    key, value = text_pair(call.data, "", TAG_LENGTH)
    _tags_set(tracked, {key: value})
    return {}


def delete_tag(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    key = call.text("key", at_most=KEY_LENGTH)
    if not tracked.tags.filter(key=key).delete()[0]:
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"No tag with name: {key} in run with id {tracked.uuid}")
    return {}


def log_batch(call: Call) -> JSON:
    """Store metrics, parameters and tags of one request, all or none of them."""
    tracked = run_of(call, is_change=True, is_light=True)
    metrics, parameters, tags = entries(call, "metrics"), entries(call, "params"), entries(call, "tags")
    for name, count, limit in (
        ("metrics", len(metrics), MAX_METRICS),
        ("params", len(parameters), MAX_PARAMETERS),
        ("tags", len(tags), MAX_TAGS),
        ("metrics, params, and tags", len(metrics) + len(parameters) + len(tags), MAX_ENTITIES),
    ):
        if count > limit:
            raise invalid(
                f"A batch logging request can contain at most {limit} {name}. Got {count} {name}. Please split up"
                f" {name} across multiple requests and try again."
            )
    pairs = [text_pair(item, f"params[{index}]", PARAMETER_LENGTH) for index, item in enumerate(parameters)]
    if len({key for key, _ in pairs}) < len(pairs):
        doubled = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise invalid(
            f"Duplicate parameter keys have been submitted: {doubled}. Please ensure the request contains only one"
            " param value per param key."
        )
    labels = dict(text_pair(item, f"tags[{index}]", TAG_LENGTH) for index, item in enumerate(tags))
    with transaction.atomic():
        if pairs:
            services.parameters_set(tracked=tracked, parameters=dict(pairs))
        if labels:
            _tags_set(tracked, labels)
        _points_store(call, tracked, metrics, "metrics")
    return {}


def log_inputs(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    datasets, models = entries(call, "datasets"), entries(call, "models")
    if "datasets" not in call.data and not models:
        raise required("datasets")
    for index, item in enumerate(datasets):
        dataset = item.get("dataset")
        if not isinstance(dataset, Mapping) or not dataset.get("name") or not dataset.get("digest"):
            raise invalid_value(f"datasets[{index}].dataset", dataset, "expected an object with name and digest")
        for name, limit in _DATASET_LENGTHS.items():
            if len(str(dataset.get(name) or "")) > limit:
                raise invalid(f"'datasets[{index}].dataset.{name}' exceeds the maximum length of {limit} characters")
        if not isinstance(item.get("tags") or [], list) or any(
            not isinstance(tag, Mapping) for tag in item.get("tags") or []
        ):
            raise invalid_value(f"datasets[{index}].tags", item.get("tags"), "expected a list of objects")
    named = [{"model_id": str(item.get("model_id", ""))[:80]} for item in models]
    with transaction.atomic():
        _, tracked = services.lock(tracked)
        inputs = list(tracked.inputs)
        inputs += [item for item in storable.json([*datasets, *named]) if item not in inputs]
        if len(inputs) > MAX_INPUTS:
            raise invalid(f"Run {tracked.uuid} would have {len(inputs)} inputs; the limit is {MAX_INPUTS}")
        TrackedRun.objects.filter(pk=tracked.pk).update(inputs=inputs)
    return {}


def log_outputs(call: Call) -> JSON:
    tracked = run_of(call, is_change=True)
    if not call.data.get("models"):
        raise required("models")
    models = [
        {"model_id": str(item.get("model_id", ""))[:80], "step": integer(item.get("step") or 0) or 0}
        for item in entries(call, "models")
    ]
    with transaction.atomic():
        _, tracked = services.lock(tracked)
        outputs = [*tracked.outputs, *(item for item in storable.json(models) if item not in tracked.outputs)]
        if len(outputs) > MAX_INPUTS:
            raise invalid(f"Run {tracked.uuid} would have {len(outputs)} outputs; the limit is {MAX_INPUTS}")
        TrackedRun.objects.filter(pk=tracked.pk).update(outputs=outputs)
    return {}


def log_model(call: Call) -> JSON:
    """Accept the description of a logged model and keep it in a tag, as MLflow's own server does."""
    tracked = run_of(call, is_change=True)
    text = call.text("model_json", at_most=10**6)
    try:
        model = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid(f"Malformed model info. {text[:200]} is not a valid JSON.") from None
    missing_fields = sorted({"artifact_path", "flavors", "utc_time_created", "run_id"} - set(model)) if isinstance(
        model, dict
    ) else ["all"]  # fmt: skip
    if missing_fields:
        raise invalid(f"Model json is missing mandatory fields: {missing_fields}")
    with transaction.atomic():
        _, tracked = services.lock(tracked)
        previous = tracked.tags.filter(key=_HISTORY).values_list("value", flat=True).first()
        try:
            models = json.loads(previous or "[]")
        except ValueError:
            models = []
        services.tags_set(tracked=tracked, tags={_HISTORY: json.dumps([*models, model])[: 10**6]})
    return {}


def _tags_set(tracked: TrackedRun, tags: Mapping[str, str]) -> None:
    services.tags_set(tracked=tracked, tags=tags)
    if _RUN_NAME in tags:
        services.tracked_run_update(tracked=tracked, name=tags[_RUN_NAME])


# --- metrics ---------------------------------------------------------------------------------------------------------


def history(call: Call) -> JSON:
    tracked = run_of(call)
    key = call.text("metric_key", at_most=KEY_LENGTH)
    # As MLflow's server: a request that states no size gets the whole history.
    page = page_of(_history(tracked, key), call, default=10**6, at_most=10**6)
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
    run_ids = _listed(call, "run_id")
    if not run_ids:
        raise invalid("GetMetricHistoryBulk request must specify at least one run_id.")
    if len(run_ids) > MAX_RUNS:
        raise invalid(f"GetMetricHistoryBulk request cannot specify more than {MAX_RUNS} run_ids.")
    if not call.data.get("metric_key"):
        raise invalid("GetMetricHistoryBulk request must specify a metric_key.")
    key = call.text("metric_key", at_most=KEY_LENGTH)
    limit = call.whole("max_results", 25_000, at_least=1, at_most=25_000)
    metrics: list[JSON] = []
    for tracked in sorted(_runs_by_id(run_ids), key=lambda each: each.uuid):
        points = sorted(_history(tracked, key), key=lambda point: (point[1], point[2], point[0]))
        metrics += [{**metric_json(key, *point), "run_id": tracked.uuid} for point in points[: limit - len(metrics)]]
    return {"metrics": metrics}


def history_bulk_interval(call: Call) -> JSON:
    """Return the points of one metric of several runs at up to about max_results steps between two steps."""
    run_ids = _listed(call, "run_ids")
    if not run_ids:
        raise required("run_ids")
    if len(run_ids) > MAX_RUNS:
        raise invalid(f"GetMetricHistoryBulkInterval request must specify at most {MAX_RUNS} run_ids.")
    key = call.text("metric_key", at_most=KEY_LENGTH)
    limit = integer(call.data.get("max_results") or 2_500) if "max_results" in call.data else 2_500
    if call.data.get("max_results") in (0, "0") or limit is None or not 1 <= limit <= 2_500:
        raise invalid_value("max_results", call.data.get("max_results"), "max_results must be between 1 and 2500")
    first, last = _interval(call)
    runs = [(tracked, _history(tracked, key, first_step=first, last_step=last)) for tracked in _runs_by_id(run_ids)]
    steps = _sampled_steps([sorted({point[2] for point in points}) for _, points in runs], limit)
    return {
        "metrics": [
            {**metric_json(key, *point), "run_id": tracked.uuid}
            for tracked, points in runs
            for point in sorted(points, key=lambda point: (point[2], point[1], point[0]))
            if point[2] in steps
        ]
    }


def _interval(call: Call) -> tuple[int, int]:
    has_first, has_last = (call.data.get(name) not in (None, "") for name in ("start_step", "end_step"))
    if has_first != has_last:
        raise invalid("If either start step or end step are specified, both must be specified.")
    first = call.whole("start_step", -MAX_STEP, at_least=-(2**63))
    last = call.whole("end_step", MAX_STEP, at_least=-(2**63))
    if first > last:
        raise invalid(f"end_step must be greater than start_step. Found start_step={first} and end_step={last}.")
    return max(first, -MAX_STEP), min(last, MAX_STEP)


def _sampled_steps(steps_of_runs: Sequence[Sequence[int]], limit: int) -> set[int]:
    """Thin the steps of all runs together, and keep the first and the last step of each."""
    steps = sorted({step for steps in steps_of_runs for step in steps})
    if len(steps) <= limit:
        return set(steps)
    ends = {step for own in steps_of_runs if own for step in (own[0], own[-1])}
    return {*steps[:: len(steps) // limit], steps[-1], *ends}


def _listed(call: Call, name: str) -> list[str]:
    """Return a parameter that a query may repeat."""
    values = call.data.get(name) or []
    return [str(value) for value in (values if isinstance(values, list) else [values])]


def _runs_by_id(run_ids: Sequence[str]) -> list[TrackedRun]:
    """Return the runs with these IDs in this order; raises MlflowError for one that does not exist."""
    rows = {tracked.uuid: tracked for tracked in TrackedRun.objects.select_related("run").filter(uuid__in=run_ids)}
    absent = [run_id for run_id in run_ids if run_id not in rows]
    if absent:
        raise MlflowError("RESOURCE_DOES_NOT_EXIST", f"Run with id={absent[0][:80]} not found")
    return [rows[run_id] for run_id in run_ids]
