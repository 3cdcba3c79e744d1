"""What clients ask about server, user, projects and runs."""

from __future__ import annotations

import re

from django.contrib.auth.models import User

from parlab.lab.models import Experiment, WandbRun
from parlab.lab.services.events import run_alerted
from parlab.series import log
from parlab.tracking import runs as services

from .filters import order_of, passes
from .projects import experiment_named, experiment_of, home_entity, own, run_named
from .protocol import JSON, Call
from .runs import run_json

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


def server(_call: Call) -> JSON:
    """Return what this server is; it has none of the features that newer clients may ask for."""
    info: JSON = {
        "cliVersionInfo": {"max_cli_version": MAX_CLIENT, "min_cli_version": "0.22.0"},
        "latestLocalVersionInfo": None,
        "features": [],
    }
    return {"serverInfo": info, "QueryType": None, "MutationType": None, "ServerInfoType": None}


def viewer(call: Call) -> JSON:
    """Return the user of the token; the entity is the project of the token."""
    return {"viewer": user_json(call.user)} | server(call)


def user_json(user: User) -> JSON:
    name = user.get_username()
    return {
        "id": str(user.pk),
        "entity": home_entity(user),
        "username": name,
        "name": user.get_full_name() or name,
        "email": user.email,
        "flags": "{}",
        "admin": bool(user.is_superuser),
        "teams": {"edges": [{"node": {"name": home_entity(user)}}]},
        "apiKeys": {"edges": []},
        "deletedAt": None,
        "capabilities": [],
    }


def entity(call: Call) -> JSON:
    """Return an entity, which belongs to no organization here."""
    name = call.text("entityName", "entity", "name") or home_entity(call.user)
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
    name = call.text("entity", "entityName") or home_entity(call.user)
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
        each for each in rows.order_by(*order_of(call.text("order"))) if passes(each, call.document("filters") or {})
    ]
    start = int(call.text("cursor") or 0) if call.text("cursor").isdigit() else 0
    part = passed[start : start + call.whole("perPage", call.whole("first", 50))]
    edges = [{"node": run_json(each, call), "cursor": str(start + index + 1)} for index, each in enumerate(part)]
    info = {"endCursor": str(start + len(part)), "hasNextPage": start + len(part) < len(passed)}
    listed = {"runCount": len(passed), "runs": {"edges": edges, "pageInfo": info}}
    return {"project": project_json(experiment, call) | listed}


# --- alerts ----------------------------------------------------------------------------------------------------------


def alert(call: Call) -> JSON:
    """Put an alert of a script into the inbox."""
    found = own(call, run_named(call))
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
