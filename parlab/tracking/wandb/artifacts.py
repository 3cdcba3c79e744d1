"""Artifacts of W&B's clients: create a version, upload its files, commit it, change it, use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import transaction
from django.db.models import Max

from parlab.lab.models import AuditEntry, WandbArtifact
from parlab.lab.services import storable
from parlab.lab.services.configs import lock_experiment
from parlab.tracking.artifacts import artifacts_delete, clean_path

from .artifact_entities import LATEST, ONE_PAGE, State, artifact_by_id, artifact_json, birth_of, key_of, manifest_of
from .files import credentials, upload_address
from .projects import experiment_of, find_run, own
from .protocol import JSON, Call, Missing, WandbError

MANIFEST = "wandb_manifest.json"


def create(call: Call) -> JSON:
    """Create the next version of an artifact, or return the one that has the same content."""
    fields = _fields(call)
    entity, project = fields.text("entityName"), fields.text("projectName")
    experiment = experiment_of(entity, project, call.user)
    run = find_run(experiment, fields.text("runName"))
    if run is None:
        raise Missing("run", fields.text("runName"))
    own(call, run)
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
    if items is not None and not isinstance(items, list):
        raise WandbError(f"aliases is {str(items)[:60]}; send a list")
    names = [item.get("alias") if isinstance(item, Mapping) else item for item in items or []]
    return [storable.text(name)[:128] for name in names if isinstance(name, str) and name]


def _with(aliases: Iterable[str], more: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*aliases, *more]))


def create_manifest(call: Call) -> JSON:
    manifest = _manifest_upload(call, own(call, artifact_by_id(call.text("artifactID"))))
    return {"createArtifactManifest": {"artifactManifest": manifest}}


def update_manifest(call: Call) -> JSON:
    manifest = _manifest_upload(call, own(call, artifact_by_id(call.text("artifactManifestID"))))
    return {"updateArtifactManifest": {"artifactManifest": manifest}}


def _manifest_upload(call: Call, artifact: WandbArtifact) -> JSON:
    address = upload_address(call, artifact.tracked, artifact.manifest)
    file = {"id": key_of(artifact), "name": MANIFEST, "displayName": MANIFEST, "uploadUrl": address}
    return {"id": key_of(artifact), "file": file | {"uploadHeaders": credentials(call)}}


def create_files(call: Call) -> JSON:
    """Return the addresses to which files of artifacts are uploaded."""
    nodes = []
    for item in _fields(call).objects("artifactFiles") or []:
        artifact = own(call, artifact_by_id(str(item.get("artifactID"))))
        name = clean_path(str(item.get("name", "")))
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
    files = {"edges": [{"node": node} for node in nodes], "pageInfo": ONE_PAGE}
    return {"createArtifactFiles": {"files": files}}


def commit(call: Call) -> JSON:
    """Make a version visible, once its manifest and the files that it names are stored. Raises WandbError."""
    artifact = own(call, artifact_by_id(call.text("artifactID")))
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
        if isinstance(entry, dict) and not entry.get("ref") and birth_of(artifact, entry) == artifact.pk
    ]


def _is_stored(artifact: WandbArtifact, name: str) -> bool:
    return artifact.tracked.artifacts.filter(path=f"{artifact.folder}/{name}").exists()


def _take_aliases(artifact: WandbArtifact) -> None:
    """Take the aliases of a version from the other versions."""
    for other in WandbArtifact.objects.filter(experiment=artifact.experiment, name=artifact.name).exclude(
        pk=artifact.pk
    ):
        kept = [alias for alias in other.aliases if alias not in artifact.aliases]
        if kept != other.aliases:
            WandbArtifact.objects.filter(pk=other.pk).update(aliases=kept)


def update(call: Call) -> JSON:
    """Change description, metadata or aliases of a version."""
    fields = _fields(call)
    artifact = own(call, artifact_by_id(fields.text("artifactID")))
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
    artifact, names = own(call, artifact_by_id(fields.text("artifactID"))), _aliases(fields.data.get("aliases"))
    kept = [alias for alias in artifact.aliases if alias not in names]
    artifact.aliases = _with(artifact.aliases, names) if is_added else kept
    artifact.save()
    _take_aliases(artifact)
    return {"result": {"success": True}, "addAliases": {"success": True}, "deleteAliases": {"success": True}}


def delete(call: Call) -> JSON:
    """Delete a version with its files."""
    artifact = own(call, artifact_by_id(_fields(call).text("artifactID")))
    for path in (artifact.folder, artifact.manifest):
        artifacts_delete(tracked=artifact.tracked, path=path)
    artifact.state, artifact.aliases = State.DELETED, []
    artifact.save()
    call.record(AuditEntry.Action.DELETE, "DeleteArtifact", str(artifact))
    return {"result": {"artifact": {"id": key_of(artifact)}}, "deleteArtifact": {"success": True}}


def use(call: Call) -> JSON:
    """Note that a run uses a version."""
    fields = _fields(call)
    artifact = artifact_by_id(fields.text("artifactID"))
    run = find_run(
        experiment_of(fields.text("entityName"), fields.text("projectName"), call.user), fields.text("runName")
    )
    if run is None:
        raise Missing("run", fields.text("runName"))
    artifact.users.add(own(call, run).tracked)
    return {"useArtifact": {"artifact": artifact_json(call, artifact)}}
