"""`POST /graphql`: the operations that are served, by name. Every other one is answered with its name."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from parlab.lab.models.access.viewer import current_viewer, viewing
from parlab.tracking.artifacts import BadArtifact
from parlab.tracking.runs import Conflict

from . import artifact_reads, artifacts, files, history, queries, runs
from .protocol import JSON, Call, Missing, WandbError, allow, authenticated, body_of, failure

logger = logging.getLogger(__name__)

_NAMED = re.compile(r"\s*(?:#[^\n]*\n\s*)*(query|mutation|subscription)?\s*(\w*)")
_ASKS_WHO = re.compile(r"\s*(?:query)?\s*\{\s*viewer\b")
"""The one operation that clients send without a name, to check their key."""
_PROBE = "Probe"
_NOTHING: JSON = {"project": None, "model": None, "artifact": None}
"""The answer to a query about what does not exist."""

QUERIES: dict[str, Callable[[Call], JSON]] = {
    "Viewer": queries.viewer,
    "GetViewer": queries.viewer,
    "ServerInfo": queries.server,
    "ServerFeaturesQuery": queries.server,
    "GetDefaultEntity": queries.viewer,
    "GetTeamEntity": queries.entity,
    "EntityIsTeam": queries.entity,
    "FetchOrgEntityFromEntity": queries.entity,
    "FetchOrgInfoFromEntity": queries.entity,
    "OrganizationCoreWeaveOrganizationID": queries.entity,
    "XXHashDigestsEnabled": queries.entity,
    "OrgFeatureFlags": queries.organization,
    "Project": queries.project,
    "GetProject": queries.project,
    "GetProjects": queries.projects,
    "Projects": queries.projects,
    "EntityProjects": queries.projects,
    "ProjectDetails": queries.project,
    "Entity": queries.entity,
    "IsProjectReadOnly": queries.project,
    "RunResumeStatus": runs.resume_status,
    "RunStoppedStatus": queries.run,
    "Run": queries.run,
    "Runs": queries.runs,
    "RunState": queries.run,
    "QueryRunInfo": queries.run,
    "HistoryPage": history.page,
    "RunFullHistory": history.full,
    "RunSampledHistory": history.sampled,
    "SampledHistoryPage": history.sampled,
    "RunParquetHistory": history.live,
    "RunHistoryKeys": history.keys,
    "RunConsoleLogTail": queries.logs,
    "RunConsoleLogPage": queries.logs,
    "RunFiles": files.listing,
    "ClientIDMapping": artifact_reads.client_id,
    "ArtifactType": artifact_reads.by_name,
    "ArtifactMembershipByName": artifact_reads.by_name,
    "ArtifactByName": artifact_reads.by_name,
    "ArtifactViaMembershipByName": artifact_reads.by_name,
    "ArtifactMembershipFiles": artifact_reads.membership_files,
    "ArtifactCollectionMembershipFiles": artifact_reads.membership_files,
    "ArtifactCollectionMembershipFileUrls": artifact_reads.membership_files,
    "ArtifactVersionFiles": artifact_reads.membership_files,
    "GetArtifactMembershipFileUrls": artifact_reads.membership_files,
    "ArtifactByID": artifact_reads.by_id,
    "ArtifactManifest": artifact_reads.by_id,
    "FetchArtifactManifest": artifact_reads.by_id,
    "ArtifactFileURLs": artifact_reads.file_addresses,
    "ArtifactFileUrls": artifact_reads.file_addresses,
    "ArtifactFileURLsByManifestEntries": artifact_reads.file_addresses,
    "FetchArtifactDigestAlgorithm": artifact_reads.digest_algorithm,
    "RunOutputArtifacts": partial(artifact_reads.of_run, is_input=False),
    "RunInputArtifacts": partial(artifact_reads.of_run, is_input=True),
    "ProjectArtifacts": artifact_reads.versions,
    "ProjectArtifactCollection": artifact_reads.collection,
    "ProjectArtifactCollections": artifact_reads.collections,
    "ArtifactTypeArtifactCollections": artifact_reads.collections,
    "ProjectArtifactTypes": artifact_reads.types,
    "ProjectArtifactType": artifact_reads.types,
    "ArtifactCreatedBy": artifact_reads.created_by,
    "ArtifactUsedBy": artifact_reads.used_by,
    # Clients ask which fields a server has, and do without those that it lacks.
    "TypeFields": queries.type_fields,
    "InputFields": queries.type_fields,
}
MUTATIONS: dict[str, Callable[[Call], JSON]] = {
    "CreateProject": queries.create_project,
    "UpsertModel": queries.create_project,
    "UpsertBucket": runs.upsert,
    "DeleteRun": runs.delete,
    "StopRun": runs.stop,
    "CreateRunFiles": files.create,
    "MarkRunFilesUploaded": files.uploaded,
    "NotifyScriptableRunAlert": queries.alert,
    "CreateArtifact": artifacts.create,
    "CreateArtifactManifest": artifacts.create_manifest,
    "UpdateArtifactManifest": artifacts.update_manifest,
    "CreateArtifactFiles": artifacts.create_files,
    "CommitArtifact": artifacts.commit,
    "UpdateArtifact": artifacts.update,
    "AddAliases": partial(artifacts.change_aliases, is_added=True),
    "DeleteAliases": partial(artifacts.change_aliases, is_added=False),
    "DeleteArtifact": artifacts.delete,
    "UseArtifact": artifacts.use,
}  # fmt: skip


@csrf_exempt
@login_not_required
def graphql(request: HttpRequest) -> HttpResponse:
    """Answer an operation of GraphQL. What goes wrong is an error in its answer, which no client sends again."""
    with viewing(current_viewer()):
        return _answered(request)


def _answered(request: HttpRequest) -> HttpResponse:
    try:
        if request.method != "POST":
            raise WandbError(f"{request.path} accepts POST, not {request.method}", 405)
        token = authenticated(request)
        body = body_of(request)
        query, variables = str(body.get("query") or ""), body.get("variables")
        is_query, name = operation_of(query)
        allow(token, "read" if is_query else "write" if name.startswith("Delete") else "report")
        if is_query and name.startswith(_PROBE):
            return JsonResponse({"data": queries.probed(query)})
        call = Call(token.user, variables if isinstance(variables, dict) else {}, request)
        return JsonResponse(_answer(call, name, is_query=is_query))
    except WandbError as error:
        return failure(error)
    except PermissionDenied as error:
        return failure(WandbError(str(error), 403))
    except RequestDataTooBig as error:
        return failure(WandbError(f"The request body is too large: {error}", 413))


def operation_of(query: str) -> tuple[bool, str]:
    """Return whether an operation only reads, and its name."""
    match = _NAMED.match(query)
    kind, name = (match[1] or "query", match[2]) if match else ("query", "")
    return kind == "query", name or ("Viewer" if _ASKS_WHO.match(query) else "")


def _answer(call: Call, name: str, *, is_query: bool) -> JSON:
    # Only what the right of a mutation was checked for may change something, whatever its name.
    serve = (QUERIES if is_query else MUTATIONS).get(name)
    if serve is None:
        logger.info("wandb: operation %s is not served", name[:80])
        text = f"{name[:80] or 'An operation without a name'} is not served by parlab; see docs/use/logging.md"
        return {"data": None, "errors": [{"message": text, "path": [name[:80]]}]}
    try:
        return {"data": serve(call)}
    except Missing as error:
        if is_query:
            return {"data": _NOTHING}
        return _refused(error)
    except (WandbError, Conflict, BadArtifact) as error:
        if isinstance(error, WandbError) and error.status in (401, 403, 413):
            raise
        return _refused(error)


def _refused(error: Exception) -> JSON:
    return {"data": None, "errors": [{"message": str(error)}]}
