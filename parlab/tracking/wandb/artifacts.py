"""Versioned artifacts of W&B's clients: create, upload, commit, use, find, download."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import transaction
from django.db.models import Max, QuerySet, Sum

from parlab.lab.models import Artifact, Experiment, WandbArtifact
from parlab.lab.services import storable
from parlab.lab.services.configs import lock_experiment
from parlab.tracking.artifacts import artifacts_delete, clean_path, object_path

from .files import credentials, file_address, upload_address
from .places import experiment_named, experiment_of, find_run, run_named
from .protocol import JSON, Call, Missing, WandbError
from .runs import run_json

LATEST = "latest"
_KEY = "Artifact:"
MANIFEST = "wandb_manifest.json"
State = WandbArtifact.State


# --- up --------------------------------------------------------------------------------------------------------------


def create(call: Call) -> JSON:
    """Create the next version of an artifact, or return the one that has the same content."""
    fields = _fields(call)
    entity, project = fields.text("entityName"), fields.text("projectName")
    experiment = experiment_of(entity, project, call.user)
    run = find_run(experiment, fields.text("runName"))
    if run is None:
        raise Missing("run", fields.text("runName"))
    names = fields.texts("artifactCollectionNames") or []
    name = clean_path((names[0] if names else fields.text("artifactCollectionName"))[:128])
    if "/" in name:
        raise WandbError(f"artifact name {name!r} has a slash; use letters, digits, dots, dashes and underscores")
    with transaction.atomic():
        lock_experiment(experiment)
        versions = WandbArtifact.objects.filter(experiment=experiment, name=name)
        other = versions.exclude(type=fields.text("artifactTypeName")).exclude(state=State.DELETED).first()
        if other is not None:
            raise WandbError(f"artifact {name!r} has type {other.type!r}, not {fields.text('artifactTypeName')!r}")
        artifact = versions.filter(digest=fields.text("digest"), state=State.COMMITTED).first()
        if artifact is None:
            last = versions.aggregate(last=Max("version"))["last"]
            artifact = WandbArtifact.objects.create(
                experiment=experiment,
                tracked=run.tracked,
                type=fields.text("artifactTypeName")[:128],
                name=name,
                version=0 if last is None else last + 1,
                digest=fields.text("digest")[:128],
                description=fields.text("description")[:10_000],
                metadata=storable.json(fields.document("metadata") or {}),
            )
        artifact.client_id = fields.text("clientID")[:256] or artifact.client_id
        artifact.aliases = _with(artifact.aliases, _aliases(fields.data.get("aliases")))
        artifact.save()
        if artifact.state == State.COMMITTED:
            _take_aliases(artifact)
    return {"createArtifact": {"artifact": artifact_json(call, artifact)}}


def _fields(call: Call) -> Call:
    """Return a request whose variables are in `input`."""
    stated = call.data.get("input")
    return Call(call.user, stated, call.http) if isinstance(stated, Mapping) else call


def _aliases(items: Any) -> list[str]:
    names = [item.get("alias") if isinstance(item, Mapping) else item for item in items or []]
    return [storable.text(name)[:128] for name in names if isinstance(name, str) and name]


def _with(aliases: Iterable[str], more: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*aliases, *more]))


def create_manifest(call: Call) -> JSON:
    return {"createArtifactManifest": {"artifactManifest": _manifest_upload(call, _by_id(call.text("artifactID")))}}


def update_manifest(call: Call) -> JSON:
    manifest = _manifest_upload(call, _by_id(call.text("artifactManifestID")))
    return {"updateArtifactManifest": {"artifactManifest": manifest}}


def _manifest_upload(call: Call, artifact: WandbArtifact) -> JSON:
    address = upload_address(call, artifact.tracked, artifact.manifest)
    file = {"id": key_of(artifact), "name": MANIFEST, "displayName": MANIFEST, "uploadUrl": address}
    return {"id": key_of(artifact), "file": file | {"uploadHeaders": credentials(call)}}


def create_files(call: Call) -> JSON:
    """Return the addresses to which files of artifacts are uploaded."""
    nodes = []
    for item in _fields(call).data.get("artifactFiles") or []:
        artifact, name = _by_id(str(item.get("artifactID"))), clean_path(str(item.get("name", "")))
        path = f"{artifact.folder}/{name}"
        nodes.append(
            {
                "id": f"{artifact.pk}/{name}",
                "name": name,
                "displayName": name,
                "storagePath": path,
                "uploadUrl": upload_address(call, artifact.tracked, path),
                "uploadHeaders": credentials(call),
                "uploadMultipartUrls": None,
                "artifact": {"id": key_of(artifact)},
            }
        )
    files = {"edges": [{"node": node} for node in nodes], "pageInfo": _ONE_PAGE}
    return {"createArtifactFiles": {"files": files}}


def commit(call: Call) -> JSON:
    """Make a version visible, once its manifest and the files that it names are stored. Raises WandbError."""
    artifact = _by_id(call.text("artifactID"))
    missing = [name for name in _own_files(artifact) if not _is_stored(artifact, name)]
    if missing:
        raise WandbError(f"file {missing[0][:200]!r} of {artifact} is not uploaded; upload it first")
    with transaction.atomic():
        lock_experiment(artifact.experiment)
        artifact.refresh_from_db()
        artifact.state = State.COMMITTED
        artifact.aliases = _with(artifact.aliases, [LATEST])
        artifact.save()
        _take_aliases(artifact)
    return {"commitArtifact": {"artifact": artifact_json(call, artifact)}}


def _own_files(artifact: WandbArtifact) -> list[str]:
    """Return the names of the files that a manifest lists and that were uploaded with it; references are not."""
    entries = manifest_of(artifact).get("contents")
    return [
        name
        for name, entry in (entries.items() if isinstance(entries, dict) else ())
        if isinstance(entry, dict) and not entry.get("ref") and _birth(artifact, entry) == artifact.pk
    ]


def _birth(artifact: WandbArtifact, entry: JSON) -> int | None:
    """Return the primary key of the version that a file of a manifest was uploaded with."""
    stated = entry.get("birthArtifactID")
    if not stated:
        return artifact.pk
    number = _number(str(stated))
    if number is None:  # the ID that the client gave the version before it was created
        other = WandbArtifact.objects.filter(client_id=str(stated)).order_by("-pk").first()
        return other.pk if other is not None else artifact.pk
    return number


def _is_stored(artifact: WandbArtifact, name: str) -> bool:
    return artifact.tracked.artifacts.filter(path=f"{artifact.folder}/{name}").exists()


def manifest_of(artifact: WandbArtifact) -> JSON:
    """Return the manifest of a version; empty where it is not stored."""
    row = artifact.tracked.artifacts.filter(path=artifact.manifest).first()
    if row is None:
        return {}
    try:
        manifest = json.loads(object_path(row.sha256).read_bytes())
    except (ValueError, OSError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _take_aliases(artifact: WandbArtifact) -> None:
    """Take the aliases of a version from the other versions."""
    for other in WandbArtifact.objects.filter(experiment=artifact.experiment, name=artifact.name).exclude(
        pk=artifact.pk
    ):
        kept = [alias for alias in other.aliases if alias not in artifact.aliases]
        if kept != other.aliases:
            WandbArtifact.objects.filter(pk=other.pk).update(aliases=kept)


# --- change ----------------------------------------------------------------------------------------------------------


def update(call: Call) -> JSON:
    """Change description, metadata or aliases of a version."""
    fields = _fields(call)
    artifact = _by_id(fields.text("artifactID"))
    metadata = fields.document("metadata")
    if metadata is not None:
        artifact.metadata = storable.json(metadata)
    if "description" in fields.data:
        artifact.description = fields.text("description")[:10_000]
    if fields.data.get("aliases") is not None:
        artifact.aliases = _aliases(fields.data["aliases"])
    artifact.save()
    _take_aliases(artifact)
    result = {"artifact": artifact_json(call, artifact)}
    return {"updateArtifact": result, "result": result}


def change_aliases(call: Call, *, is_added: bool) -> JSON:
    fields = _fields(call)
    artifact, names = _by_id(fields.text("artifactID")), _aliases(fields.data.get("aliases"))
    kept = [alias for alias in artifact.aliases if alias not in names]
    artifact.aliases = _with(artifact.aliases, names) if is_added else kept
    artifact.save()
    _take_aliases(artifact)
    return {"result": {"success": True}, "addAliases": {"success": True}, "deleteAliases": {"success": True}}


def delete(call: Call) -> JSON:
    """Delete a version with its files."""
    artifact = _by_id(_fields(call).text("artifactID"))
    for path in (artifact.folder, artifact.manifest):
        artifacts_delete(tracked=artifact.tracked, path=path)
    artifact.state, artifact.aliases = State.DELETED, []
    artifact.save()
    return {"result": {"artifact": {"id": key_of(artifact)}}, "deleteArtifact": {"success": True}}


def use(call: Call) -> JSON:
    """Note that a run uses a version."""
    fields = _fields(call)
    artifact = _by_id(fields.text("artifactID"))
    run = find_run(
        experiment_of(fields.text("entityName"), fields.text("projectName"), call.user), fields.text("runName")
    )
    if run is None:
        raise Missing("run", fields.text("runName"))
    artifact.users.add(run.tracked)
    return {"useArtifact": {"artifact": artifact_json(call, artifact)}}


# --- down ------------------------------------------------------------------------------------------------------------

_ONE_PAGE = {"hasNextPage": False, "endCursor": None}


def by_name(call: Call) -> JSON:
    """Return the version that `NAME:ALIAS` names, as itself and as a member of its collection."""
    artifact = _named(experiment_named(call), call.text("name"))
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
    artifact = _named(experiment_named(call), f"{name}:{alias}" if alias else name)
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
    artifact = _by_id(key)
    return {"artifact": artifact_json(call, artifact)}


def file_addresses(call: Call) -> JSON:
    """Return the addresses of files of a version: of those that a manifest lists, or of all."""
    artifact = _by_id(call.text("id"))
    entries = call.data.get("entries")
    names = [str(entry.get("name", "")) for entry in entries] if isinstance(entries, list) else None
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
    """Return a collection of a type."""
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
    listed = {"totalCount": len(edges), "pageInfo": _ONE_PAGE, "edges": edges}
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
    return {"project": {"artifactTypes": {"edges": edges, "pageInfo": _ONE_PAGE}, "artifactType": nodes.get(wanted)}}


def created_by(call: Call) -> JSON:
    artifact = _by_id(call.text("id"))
    run = getattr(artifact.tracked, "wandb", None)
    found = None if run is None else {"__typename": "Run", **run_json(run, call)}
    return {"artifact": {"createdBy": found}}


def used_by(call: Call) -> JSON:
    artifact = _by_id(call.text("id"))
    runs = [each.wandb for each in artifact.users.select_related("wandb", "run__experiment") if hasattr(each, "wandb")]
    edges = [{"node": {"__typename": "Run", **run_json(run, call)}} for run in runs]
    return {"artifact": {"usedBy": {"edges": edges, "pageInfo": _ONE_PAGE}}}


def key_of(artifact: WandbArtifact) -> str:
    """Return the ID of a version; clients decode it from base64."""
    return base64.b64encode(f"{_KEY}{artifact.pk:012d}".encode()).decode()


def _number(key: str) -> int | None:
    """Return the primary key that an ID names."""
    try:
        text = base64.b64decode(key, validate=True).decode()
    except ValueError:
        return None
    number = text.removeprefix(_KEY)
    return int(number) if text.startswith(_KEY) and number.isdigit() and len(number) < 18 else None


def _by_id(key: str) -> WandbArtifact:
    rows = WandbArtifact.objects.select_related("experiment", "tracked__run__experiment").exclude(state=State.DELETED)
    number = _number(key)
    artifact = rows.filter(pk=number).first() if number is not None else None
    if artifact is None:
        raise Missing("artifact", key)
    return artifact


def _named(experiment: Experiment, name: str) -> WandbArtifact:
    """Find a version by `NAME:ALIAS` or `NAME:vNUMBER`. Raises Missing."""
    collection_name, _, alias = name.rpartition("/")[2].partition(":")
    rows = WandbArtifact.objects.filter(experiment=experiment, name=collection_name, state=State.COMMITTED)
    rows = rows.select_related("experiment", "tracked__run__experiment")
    alias = alias or LATEST
    for artifact in rows:
        if alias in (*artifact.aliases, f"v{artifact.version}", artifact.digest):
            return artifact
    raise Missing("artifact", name)


def artifact_json(call: Call, artifact: WandbArtifact) -> JSON:
    """Write a version with the fields of all queries."""
    files = artifact.tracked.artifacts.filter(path__startswith=f"{artifact.folder}/")
    sequence = _sequence(call, artifact)
    last = WandbArtifact.objects.filter(
        experiment=artifact.experiment, name=artifact.name, state=State.COMMITTED
    ).first()
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
        "artifactSequence": sequence | {"latestArtifact": {"id": key_of(last), "versionIndex": last.version} if last else None},
        "aliases": [
            {"__typename": "ArtifactAlias", "id": f"{artifact.pk}/{alias}", "alias": alias, "artifactCollection": sequence,
             "artifactCollectionName": artifact.name}
            for alias in artifact.aliases
        ],
        "tags": [],
        "size": files.aggregate(total=Sum("size"))["total"] or 0,
        "fileCount": files.count(),
        "commitHash": None,
        "historyStep": None,
        "ttlDurationSeconds": -2,
        "ttlIsInherited": True,
        "createdAt": _time(artifact.created_at),
        "updatedAt": _time(artifact.updated_at),
        "currentManifest": manifest,
    }  # fmt: skip


def _sequence(call: Call, artifact: WandbArtifact) -> JSON:
    entity = call.text("entity", "entityName") or call.user.get_username()
    key = str(artifact.experiment_id)
    place = {
        "id": key,
        "internalId": key,
        "name": artifact.experiment.name,
        "entityName": entity,
        "entity": {"name": entity},
    }
    return {"__typename": "ArtifactSequence", "id": f"{key}/{artifact.name}", "name": artifact.name, "project": place}


def _collection_json(call: Call, artifact: WandbArtifact) -> JSON:
    return _sequence(call, artifact) | {
        "description": "",
        "createdAt": _time(artifact.created_at),
        "updatedAt": _time(artifact.updated_at),
        "aliases": {"edges": [{"node": {"alias": alias}} for alias in artifact.aliases], "pageInfo": _ONE_PAGE},
        "type": {"name": artifact.type},
        "defaultArtifactType": {"name": artifact.type},
        "tags": {"edges": []},
    }


def _time(moment: Any) -> str:
    return str(moment.strftime("%Y-%m-%dT%H:%M:%SZ"))


def _listed(call: Call, rows: QuerySet[WandbArtifact]) -> JSON:
    rows = rows.filter(state=State.COMMITTED).select_related("experiment", "tracked__run__experiment")
    edges = [{"node": artifact_json(call, row), "version": f"v{row.version}", "cursor": str(row.pk)} for row in rows]
    return {"totalCount": len(edges), "pageInfo": _ONE_PAGE, "edges": edges}


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
                    "updatedAt": _time(row.updated_at), "digest": None, "md5": None,
                },
                "cursor": str(row.pk),
            }
        )  # fmt: skip
    return {"totalCount": len(edges), "pageInfo": _ONE_PAGE, "edges": edges}


def _owners(artifact: WandbArtifact) -> dict[str, WandbArtifact]:
    """Return for each file of a version the version that it was uploaded with."""
    owners: dict[str, WandbArtifact] = {}
    entries = manifest_of(artifact).get("contents")
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        birth = _birth(artifact, entry) if isinstance(entry, dict) else None
        if birth == artifact.pk:
            owners[name] = artifact
        elif birth is not None:
            others = WandbArtifact.objects.filter(pk=birth, experiment=artifact.experiment)
            other = others.select_related("tracked").first()
            if other is not None:
                owners[name] = other
    return owners
