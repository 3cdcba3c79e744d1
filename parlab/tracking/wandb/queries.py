"""What clients ask about server, user, projects and runs."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.auth.models import User

from parlab.lab.models import Experiment, WandbRun
from parlab.lab.services.events import run_alerted
from parlab.series import log
from parlab.tracking import runs as services
from runners.wire.protocol import RunState

from .places import experiment_named, experiment_of, run_named
from .protocol import JSON, Call, WandbError
from .runs import STATES, run_json

_FIELDS = {
    "Mutation": ("createRunFiles",),
    "CreateArtifactInput": (
        "entityName", "projectName", "runName", "artifactTypeName", "artifactCollectionName", "digest", "description",
        "aliases", "metadata", "clientID", "sequenceClientID", "enableDigestDeduplication", "digestAlgorithm",
    ),
}  # fmt: skip
_TYPES = re.compile(r'(\w+)\s*:\s*__type\(name:\s*"(\w+)"\)')
MAX_CLIENT = "99.0.0"
"""Newest client that is accepted: any."""
# fmt: off
_ORDERS = {"created_at": "tracked__run__queued_at", "createdAt": "tracked__run__queued_at", "heartbeat_at": "tracked__last_report_at",
           "name": "run_id", "display_name": "tracked__name", "displayName": "tracked__name"}  # fmt: skip


def server(_call: Call) -> JSON:
    """Return what this server is; it has none of the features that newer clients may ask for."""
    info = {
        "cliVersionInfo": {"max_cli_version": MAX_CLIENT, "min_cli_version": "0.22.0"},
        "latestLocalVersionInfo": None,
        "features": [],
    }
    return {"serverInfo": info, "QueryType": None, "MutationType": None, "ServerInfoType": None}


def viewer(call: Call) -> JSON:
    """Return the user of the token; entities are the names of users."""
    return {"viewer": user_json(call.user)} | server(call)


def user_json(user: User) -> JSON:
    name = user.get_username()
    return {
        "id": str(user.pk),
        "entity": name,
        "username": name,
        "name": user.get_full_name() or name,
        "email": user.email,
        "flags": "{}",
        "admin": bool(user.is_superuser),
        "teams": {"edges": [{"node": {"name": name}}]},
        "apiKeys": {"edges": []},
        "deletedAt": None,
        "capabilities": [],
    }


def entity(call: Call) -> JSON:
    """Return an entity, which belongs to no organization here."""
    name = call.text("entityName", "entity", "name") or call.user.get_username()
    organization = {"name": name, "coreWeaveOrganizationId": "", "orgEntity": {"name": name}, "orgType": "PERSONAL"}
    return {
        "entity": {
            "id": name, "name": name, "isTeam": False, "organization": organization, "user": None,
            "xxhashDigestsEnabled": False, "defaultEntity": {"name": name},
        }
    }  # fmt: skip


def organization(_call: Call) -> JSON:
    return {"organization": {"featureFlags": []}}


def type_fields(call: Call) -> JSON:
    """Return the fields of a type of W&B's schema; without those that a newer client asks for, it does without."""
    names = _FIELDS.get(call.text("typeName"))
    fields = None if names is None else [{"name": name} for name in names]
    return {"TypeInfo": None if fields is None else {"fields": fields, "inputFields": fields}}


def probed(query: str) -> JSON:
    """Answer what older clients ask about types of W&B's schema, with the fields that make a difference to them."""
    return {
        alias: {"name": name, "fields": fields, "inputFields": fields}
        for alias, name in _TYPES.findall(query)
        for fields in [[{"name": field} for field in _FIELDS.get(name, ())]]
    }


def project(call: Call) -> JSON:
    return {"project": project_json(experiment_named(call), call), "model": project_json(experiment_named(call), call)}


def projects(call: Call) -> JSON:
    """List the experiments in which scripts of W&B report."""
    used = WandbRun.objects.values("experiment")
    rows = Experiment.objects.filter(pk__in=used, archived_at=None).order_by("name")
    edges = [{"node": project_json(row, call), "cursor": str(row.pk)} for row in rows]
    return {"models": {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}}


def create_project(call: Call) -> JSON:
    fields = call.data.get("input") if isinstance(call.data.get("input"), dict) else call.data
    name = str(fields.get("name") or fields.get("project") or "") if isinstance(fields, dict) else ""
    experiment = experiment_of(call.text("entity"), name, call.user, is_new=True)
    found = project_json(experiment, call)
    return {"upsertModel": {"project": found, "model": found, "inserted": True}}


def project_json(experiment: Experiment, call: Call) -> JSON:
    name = call.text("entity", "entityName") or call.user.get_username()
    return {
        "id": str(experiment.pk),
        "internalId": str(experiment.pk),
        "name": experiment.name,
        "entityName": name,
        "entity": {"id": name, "name": name},
        "createdAt": experiment.created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "isBenchmark": False,
        "readOnly": False,
        "user": user_json(experiment.owner),
        "description": experiment.question,
        "runCount": WandbRun.objects.filter(experiment=experiment, tracked__deleted_at=None).count(),
        "tags": [],
    }


# --- runs ------------------------------------------------------------------------------------------------------------


def run(call: Call) -> JSON:
    """Return a run, for `Api().run()` and for those who wait until it has ended."""
    found = run_json(run_named(call), call)
    return {"project": {"id": found["projectId"], "internalId": found["projectId"], "run": found}}


def runs(call: Call) -> JSON:
    """Return a page of the runs of a project that pass W&B's filters."""
    experiment = experiment_named(call)
    rows = WandbRun.objects.select_related("tracked__run__experiment")
    rows = rows.filter(experiment=experiment, tracked__deleted_at=None)
    passed = [
        each for each in rows.order_by(*_order(call.text("order"))) if _passes(each, call.document("filters") or {})
    ]
    start = int(call.text("cursor") or 0) if call.text("cursor").isdigit() else 0
    part = passed[start : start + call.whole("perPage", call.whole("first", 50))]
    edges = [{"node": run_json(each, call), "cursor": str(start + index + 1)} for index, each in enumerate(part)]
    info = {"endCursor": str(start + len(part)), "hasNextPage": start + len(part) < len(passed)}
    listed = {"runCount": len(passed), "runs": {"edges": edges, "pageInfo": info}}
    return {"project": project_json(experiment, call) | listed}


def _order(order: str) -> list[str]:
    fields = []
    for part in order.split(","):
        name = part.strip().lstrip("+-")
        if name in _ORDERS:
            fields.append(("-" if part.strip().startswith("-") else "") + _ORDERS[name])
    return [*fields, "tracked__run__queued_at", "pk"]


def _passes(found: WandbRun, filters: JSON) -> bool:
    """Return whether a run passes a filter in MongoDB's language. Raises WandbError for an operator not served."""
    for key, condition in filters.items():
        if key in ("$and", "$or", "$nor"):
            results = [_passes(found, part) for part in condition if isinstance(part, dict)]
            if not {"$and": all, "$or": any, "$nor": lambda each: not any(each)}[key](results):
                return False
        elif key == "$not":
            if _passes(found, condition):
                return False
        elif not _holds(_value(found, key), condition):
            return False
    return True


def _value(found: WandbRun, key: str) -> Any:
    area, _, name = key.partition(".")
    if area == "config":
        stated = found.config.get(name.removesuffix(".value"))
        return stated.get("value") if isinstance(stated, dict) and "value" in stated else _inner(found.config, name)
    if area in ("summary", "summary_metrics", "summaryMetrics"):
        return found.summary.get(name, _inner(found.summary, name))
    plain = {
        "state": STATES.get(RunState(found.tracked.run.state), "running"),
        "name": found.run_id,
        "displayName": found.tracked.name,
        "display_name": found.tracked.name,
        "group": found.facts.get("group"),
        "jobType": found.facts.get("job_type"),
        "job_type": found.facts.get("job_type"),
        "tags": found.facts.get("tags") or [],
        "username": found.tracked.user_name,
        "createdAt": found.tracked.run.queued_at.isoformat(),
        "created_at": found.tracked.run.queued_at.isoformat(),
        "sweep": None,
    }
    if key not in plain:
        raise WandbError(f"filter on {key[:80]!r} is not served; use state, name, group, tags, config.… or summary.…")
    return plain[key]


def _inner(values: JSON, name: str) -> Any:
    found: Any = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
        found = found.get("value") if isinstance(found, dict) and set(found) <= {"value", "desc"} and found else found
    return found


def _holds(value: Any, condition: Any) -> bool:
    if not isinstance(condition, dict) or not any(key.startswith("$") for key in condition):
        return (
            bool(condition in value)
            if isinstance(value, list) and not isinstance(condition, list)
            else bool(value == condition)
        )
    return all(_compares(value, operator, operand) for operator, operand in condition.items())


def _compares(value: Any, operator: str, operand: Any) -> bool:
    if operator not in _OPERATORS:
        raise WandbError(f"filter operator {operator[:40]!r} is not served; use {', '.join(_OPERATORS)}")
    try:
        return bool(_OPERATORS[operator](value, operand))
    except TypeError:
        return False  # values of different kinds do not compare


def _is_in(value: Any, operand: Any) -> bool:
    return bool(set(value) & set(operand)) if isinstance(value, list) else value in operand


def _matches(value: Any, operand: Any) -> bool:
    try:
        return isinstance(value, str) and len(str(operand)) < 200 and bool(re.search(str(operand), value[:1_000]))
    except re.error:
        raise WandbError(f"filter $regex {str(operand)[:80]!r} is not a regular expression") from None


_OPERATORS: dict[str, Any] = {
    "$eq": _holds,
    "$ne": lambda value, operand: not _holds(value, operand),
    "$gt": lambda value, operand: value is not None and value > operand,
    "$gte": lambda value, operand: value is not None and value >= operand,
    "$lt": lambda value, operand: value is not None and value < operand,
    "$lte": lambda value, operand: value is not None and value <= operand,
    "$in": _is_in,
    "$nin": lambda value, operand: not _is_in(value, operand),
    "$exists": lambda value, operand: (value is not None) == bool(operand),
    "$not": lambda value, operand: not _holds(value, operand),
    "$regex": _matches,
}


# --- alerts ----------------------------------------------------------------------------------------------------------


def alert(call: Call) -> JSON:
    """Put an alert of a script into the inbox."""
    found = run_named(call)
    run_alerted(
        run=found.tracked.run, title=call.text("title")[:200], text=call.text("text")[:2_000],
        severity=call.text("severity") or "INFO",
    )  # fmt: skip
    services.touch(found.tracked)
    return {"notifyScriptableRunAlert": {"success": True}}


def logs(call: Call) -> JSON:
    """Return the lines of the console: the last ones, or a page of them."""
    found = run_named(call)
    attempt = found.tracked.run.current_attempt()
    lines = [
        line.decode("utf-8", "replace")
        for line in b"".join(log.read_log(attempt.pk)).splitlines()
        if not line.startswith(b'{"parlab":1,')
    ]
    last = call.whole("last", 0)
    start = max(len(lines) - last, 0) if last else int(call.text("after") or 0)
    part = lines[start : start + call.whole("first", last or 1_000)]
    edges = [
        {"node": {"number": start + index, "timestamp": None, "level": "info", "label": "", "line": line}}
        for index, line in enumerate(part)
    ]
    end = start + len(part)
    listed = {"edges": edges, "pageInfo": {"endCursor": str(end), "hasNextPage": end < len(lines)}}
    return {"project": {"run": {"logLineCount": len(lines), "logLines": listed}}}
