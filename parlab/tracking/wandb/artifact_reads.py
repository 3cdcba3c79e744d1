"""Artifacts as W&B's clients find, list and download them."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet

from parlab.lab.models import Artifact, WandbArtifact

from .artifact_entities import (
    ONE_PAGE,
    State,
    artifact_by_id,
    artifact_json,
    artifact_named,
    birth_of,
    key_of,
    manifest_of,
    sequence_json,
    time_json,
)  # fmt: skip
from .files import file_address
from .projects import experiment_named, run_named
from .protocol import JSON, Call
from .runs import run_json


def by_name(call: Call) -> JSON:
    """Return the version that `NAME:ALIAS` names, as itself and as a member of its collection."""
    artifact = artifact_named(experiment_named(call), call.text("name"))
    found = artifact_json(call, artifact)
    membership = {
        "__typename": "ArtifactCollectionMembership",
        "id": key_of(artifact),
        "versionIndex": artifact.version,
        "createdAt": found["createdAt"],
        "aliases": found["aliases"],
        "artifactCollection": found["artifactSequence"],
        "artifact": found,
        "files": _files(call, artifact),
    }
    return {"project": {"artifact": found, "artifactCollectionMembership": membership}}


def membership_files(call: Call) -> JSON:
    """Return the files of the version that a collection and an alias name."""
    name, alias = call.text("collection", "artifactName"), call.text("alias", "artifactVersionIndex")
    artifact = artifact_named(experiment_named(call), f"{name}:{alias}" if alias else name)
    files = _files(call, artifact, call.texts("fileNames") or None)
    found = artifact_json(call, artifact) | {"files": files}
    membership = {
        "__typename": "ArtifactCollectionMembership", "id": key_of(artifact), "files": files, "artifact": found,
    }  # fmt: skip
    collection = {"artifactMembership": membership, "__typename": "ArtifactSequence"}
    return {
        "project": {
            "artifactCollection": collection, "artifactCollectionMembership": membership,
            "artifactType": {"artifact": found},
        }
    }  # fmt: skip


def by_id(call: Call) -> JSON:
    key = call.text("id", "artifact_id", "artifactID")
    if not key:
        return by_name(call)
    artifact = artifact_by_id(key)
    return {"artifact": artifact_json(call, artifact)}


def file_addresses(call: Call) -> JSON:
    """Return the addresses of files of a version: of those that a manifest lists, or of all."""
    artifact = artifact_by_id(call.text("id"))
    entries = call.objects("entries")
    names = None if entries is None else [str(entry.get("name", "")) for entry in entries]
    files = _files(call, artifact, names)
    return {"artifact": {"id": key_of(artifact), "files": files, "filesByManifestEntries": files}}


def client_id(call: Call) -> JSON:
    """Return the ID of the version that a client has named itself."""
    artifact = WandbArtifact.objects.filter(client_id=call.text("clientID")).order_by("-pk").first()
    return {"clientIDMapping": {"serverID": key_of(artifact)} if artifact else None}


def digest_algorithm(_call: Call) -> JSON:
    collection = {"__typename": "ArtifactSequence", "digestAlgorithm": None}
    return {"project": {"artifactType": {"artifactCollection": collection}}}


def of_run(call: Call, *, is_input: bool) -> JSON:
    """List the versions that a run has logged, or used."""
    run = run_named(call)
    rows = run.tracked.used_artifacts.all() if is_input else run.tracked.wandb_artifacts.all()
    listed = _listed(call, rows)
    return {
        "project": {
            "run": run_json(run, call) | {"outputArtifacts": listed, "inputArtifacts": listed, "artifacts": listed}
        }
    }


def versions(call: Call) -> JSON:
    """List the versions of a collection."""
    name = call.text("collection", "collectionName", "artifactCollectionName")
    rows = WandbArtifact.objects.filter(
        experiment=experiment_named(call), type=call.text("type", "artifactTypeName", "typeName"), name=name
    )
    listed = _listed(call, rows)
    collection = {"__typename": "ArtifactSequence", "name": name, "artifacts": listed}
    return {"project": {"artifactType": {"artifactCollection": collection}}}


def collection(call: Call) -> JSON:
    rows = WandbArtifact.objects.filter(
        experiment=experiment_named(call),
        name=call.text("name", "artifactCollectionName", "collection"),
        state=State.COMMITTED,
    )
    artifact = rows.first()
    found = None if artifact is None else _collection_json(call, artifact)
    kind = {"artifactCollection": found, "artifactSequence": found}
    return {"project": {"artifactType": kind, "artifactCollection": found}}


def collections(call: Call) -> JSON:
    """List the collections of a project, or of one of its types."""
    rows = WandbArtifact.objects.filter(experiment=experiment_named(call), state=State.COMMITTED)
    rows = (
        rows.filter(type=call.text("type", "artifactTypeName", "typeName"))
        if call.text("type", "artifactTypeName", "typeName")
        else rows
    )
    newest = {artifact.name: artifact for artifact in rows.order_by("version")}
    edges = [{"node": _collection_json(call, artifact), "cursor": name} for name, artifact in sorted(newest.items())]
    listed = {"totalCount": len(edges), "pageInfo": ONE_PAGE, "edges": edges}
    return {"project": {"artifactCollections": listed, "artifactType": {"artifactCollections": listed}}}


def types(call: Call) -> JSON:
    """List the types of artifacts of a project."""
    rows = WandbArtifact.objects.filter(experiment=experiment_named(call), state=State.COMMITTED)
    names = sorted(set(rows.values_list("type", flat=True)))
    nodes = {
        name: {"__typename": "ArtifactType", "id": name, "name": name, "description": "", "createdAt": ""}
        for name in names
    }
    wanted = call.text("type", "artifactTypeName", "typeName")
    edges = [{"node": node, "cursor": name} for name, node in nodes.items()]
    return {"project": {"artifactTypes": {"edges": edges, "pageInfo": ONE_PAGE}, "artifactType": nodes.get(wanted)}}


def created_by(call: Call) -> JSON:
    artifact = artifact_by_id(call.text("id"))
    run = getattr(artifact.tracked, "wandb", None)
    found = None if run is None else {"__typename": "Run", **run_json(run, call)}
    return {"artifact": {"createdBy": found}}


def used_by(call: Call) -> JSON:
    artifact = artifact_by_id(call.text("id"))
    runs = [each.wandb for each in artifact.users.select_related("wandb", "run__experiment") if hasattr(each, "wandb")]
    edges = [{"node": {"__typename": "Run", **run_json(run, call)}} for run in runs]
    return {"artifact": {"usedBy": {"edges": edges, "pageInfo": ONE_PAGE}}}


def _collection_json(call: Call, artifact: WandbArtifact) -> JSON:
    return sequence_json(call, artifact) | {
        "description": "",
        "createdAt": time_json(artifact.created_at),
        "updatedAt": time_json(artifact.updated_at),
        "aliases": {
            "edges": [{"node": {"alias": alias}, "cursor": alias} for alias in artifact.aliases],
            "pageInfo": ONE_PAGE,
        },
        "type": {"name": artifact.type},
        "defaultArtifactType": {"name": artifact.type},
        "tags": {"edges": []},
    }


def _listed(call: Call, rows: QuerySet[WandbArtifact]) -> JSON:
    rows = rows.filter(state=State.COMMITTED).select_related("experiment", "tracked__run__experiment")
    edges = [{"node": artifact_json(call, row), "version": f"v{row.version}", "cursor": str(row.pk)} for row in rows]
    return {"totalCount": len(edges), "pageInfo": ONE_PAGE, "edges": edges}


def _files(call: Call, artifact: WandbArtifact, names: Iterable[str] | None = None) -> JSON:
    """Return files of a version with their addresses: its own, and those that earlier versions brought."""
    owners = _owners(artifact)
    wanted = list(owners) if names is None else [name for name in names if name in owners]
    edges = []
    for name in wanted:
        owner = owners[name]
        row: Artifact | None = owner.tracked.artifacts.filter(path=f"{owner.folder}/{name}").first()
        if row is None:
            continue
        address = file_address(call, owner.tracked, row.path)
        edges.append(
            {
                "node": {
                    "__typename": "File", "id": str(row.pk), "name": name, "displayName": name, "url": address,
                    "directUrl": address, "sizeBytes": row.size, "storagePath": row.path, "mimetype": None,
                    "updatedAt": time_json(row.updated_at), "digest": None, "md5": None,
                },
                "cursor": str(row.pk),
            }
        )  # fmt: skip
    return {"totalCount": len(edges), "pageInfo": ONE_PAGE, "edges": edges}


def _owners(artifact: WandbArtifact) -> dict[str, WandbArtifact]:
    """Return for each file of a version the version that it was uploaded with."""
    owners: dict[str, WandbArtifact] = {}
    entries = manifest_of(artifact).get("contents")
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        birth = birth_of(artifact, entry) if isinstance(entry, dict) else None
        if birth == artifact.pk:
            owners[name] = artifact
        elif birth is not None:
            others = WandbArtifact.objects.filter(pk=birth, experiment=artifact.experiment)
            other = others.select_related("tracked").first()
            if other is not None:
                owners[name] = other
    return owners
