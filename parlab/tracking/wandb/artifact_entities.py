"""Versions of artifacts: how they are found, and as W&B's clients read them."""

from __future__ import annotations

import base64
import json
from typing import Any

from django.db.models import Sum

from parlab.lab.models import Experiment, WandbArtifact
from parlab.tracking.artifacts import object_read
from parlab.whole_numbers import whole_number

from .files import file_address
from .projects import home_entity
from .protocol import JSON, MAX_INFLATED, Call, Missing, WandbError, json_of

LATEST = "latest"
ONE_PAGE = {"hasNextPage": False, "endCursor": None}
State = WandbArtifact.State
_KEY = "Artifact:"


def key_of(artifact: WandbArtifact) -> str:
    """Return the ID of a version; clients decode it from base64."""
    return base64.b64encode(f"{_KEY}{artifact.pk:012d}".encode()).decode()


def _primary_key(key: str) -> int | None:
    """Return the primary key that an ID names."""
    try:
        text = base64.b64decode(key, validate=True).decode()
    except ValueError:
        return None
    return whole_number(text.removeprefix(_KEY), 17) if text.startswith(_KEY) else None


def artifact_by_id(key: str) -> WandbArtifact:
    rows = WandbArtifact.objects.select_related("experiment", "tracked__run__experiment").exclude(state=State.DELETED)
    number = _primary_key(key)
    artifact = rows.filter(pk=number).first() if number is not None else None
    if artifact is None:
        raise Missing("artifact", key)
    return artifact


def artifact_named(experiment: Experiment, name: str) -> WandbArtifact:
    """Find a version by `NAME:ALIAS` or `NAME:vNUMBER`. Raises Missing."""
    collection_name, _, alias = name.rpartition("/")[2].partition(":")
    rows = WandbArtifact.objects.filter(experiment=experiment, name=collection_name, state=State.COMMITTED)
    rows = rows.select_related("experiment", "tracked__run__experiment")
    alias = alias or LATEST
    for artifact in rows:
        if alias in (*artifact.aliases, f"v{artifact.version}", artifact.digest):
            return artifact
    raise Missing("artifact", name)


def manifest_of(artifact: WandbArtifact) -> JSON:
    """Return the manifest of a version; empty where it is not stored. Raises WandbError, OSError."""
    row = artifact.tracked.artifacts.filter(path=artifact.manifest).first()
    if row is None:
        return {}
    if row.size > MAX_INFLATED:
        raise WandbError(f"the manifest of {artifact} is larger than {MAX_INFLATED >> 20} MiB; log fewer files", 413)
    manifest = json_of(object_read(row.sha256), f"the manifest of {artifact}")
    return manifest if isinstance(manifest, dict) else {}


def birth_of(artifact: WandbArtifact, entry: JSON) -> int | None:
    """Return the primary key of the version that a file of a manifest was uploaded with."""
    stated = entry.get("birthArtifactID")
    if not stated:
        return artifact.pk
    number = _primary_key(str(stated))
    if number is None:  # the ID that the client gave the version before it was created
        other = WandbArtifact.objects.filter(client_id=str(stated)).order_by("-pk").first()
        return other.pk if other is not None else artifact.pk
    return number


def artifact_json(call: Call, artifact: WandbArtifact) -> JSON:
    """Write a version with the fields of all queries."""
    files = artifact.tracked.artifacts.filter(path__startswith=f"{artifact.folder}/")
    sequence = sequence_json(call, artifact)
    last = WandbArtifact.objects.filter(
        experiment=artifact.experiment, name=artifact.name, state=State.COMMITTED
    ).first()
    latest = {"id": key_of(last), "versionIndex": last.version} if last else None
    manifest = {
        "id": key_of(artifact),
        "file": {"id": key_of(artifact), "directUrl": file_address(call, artifact.tracked, artifact.manifest)},
    }
    return {
        "__typename": "Artifact",
        "id": key_of(artifact),
        "digest": artifact.digest,
        "digestAlgorithm": None,
        "versionIndex": artifact.version,
        "state": artifact.state,
        "description": artifact.description,
        "metadata": json.dumps(artifact.metadata),
        "artifactType": {"__typename": "ArtifactType", "id": artifact.type, "name": artifact.type},
        "artifactSequence": sequence | {"latestArtifact": latest},
        "aliases": [_alias_json(artifact, alias, sequence) for alias in artifact.aliases],
        "tags": [],
        "size": files.aggregate(total=Sum("size"))["total"] or 0,
        "fileCount": files.count(),
        "commitHash": None,
        "historyStep": None,
        "ttlDurationSeconds": -2,
        "ttlIsInherited": True,
        "createdAt": time_json(artifact.created_at),
        "updatedAt": time_json(artifact.updated_at),
        "currentManifest": manifest,
    }  # fmt: skip


def _alias_json(artifact: WandbArtifact, alias: str, sequence: JSON) -> JSON:
    return {
        "__typename": "ArtifactAlias",
        "id": f"{artifact.pk}/{alias}",
        "alias": alias,
        "artifactCollection": sequence,
        "artifactCollectionName": artifact.name,
    }


def sequence_json(call: Call, artifact: WandbArtifact) -> JSON:
    entity = call.text("entity", "entityName") or home_entity(call.user)
    key = str(artifact.experiment_id)
    place = {
        "id": key,
        "internalId": key,
        "name": artifact.experiment.name,
        "entityName": entity,
        "entity": {"name": entity},
    }
    return {"__typename": "ArtifactSequence", "id": f"{key}/{artifact.name}", "name": artifact.name, "project": place}


def time_json(moment: Any) -> str:
    return str(moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
