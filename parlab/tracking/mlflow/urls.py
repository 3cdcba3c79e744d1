"""Where MLflow's clients look: `/api/2.0/mlflow/...`, the same below `/ajax-api/`, and the artifact store."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.urls import path, re_path
from django.views.decorators.csrf import csrf_exempt

from . import experiments, files, models, runs
from .protocol import Endpoint, MlflowError, endpoint, error_response

View = Callable[..., HttpResponseBase]
VERSION = "3.17.2"
"""The version of MLflow whose protocol this is."""
NO_REGISTRY = "parlab has no model registry; log the model as an artifact of the run"
NO_PRESIGNED = "parlab signs no URLs of artifacts; upload and download them through mlflow-artifacts/artifacts"
NO_TRACES = "parlab stores no traces; log metrics and artifacts instead"

_ENDPOINTS: dict[str, tuple[str, Endpoint] | dict[str, Endpoint]] = {
    "experiments/create": ("POST", experiments.create),
    "experiments/get": ("GET", experiments.get),
    "experiments/get-by-name": ("GET", experiments.get_by_name),
    "experiments/search": {"POST": experiments.search, "GET": experiments.search},
    "experiments/update": ("POST", experiments.update),
    "experiments/delete": ("POST", experiments.delete),
    "experiments/restore": ("POST", experiments.restore),
    "experiments/set-experiment-tag": ("POST", experiments.set_tag),
    "experiments/delete-experiment-tag": ("POST", experiments.delete_tag),
    "runs/create": ("POST", runs.create),
    "runs/get": ("GET", runs.get),
    "runs/update": ("POST", runs.update),
    "runs/delete": ("POST", runs.delete),
    "runs/restore": ("POST", runs.restore),
    "runs/search": ("POST", runs.search),
    "runs/log-metric": ("POST", runs.log_metric),
    "runs/log-parameter": ("POST", runs.log_parameter),
    "runs/log-batch": ("POST", runs.log_batch),
    "runs/log-inputs": ("POST", runs.log_inputs),
    "runs/outputs": ("POST", runs.log_outputs),
    "runs/log-model": ("POST", runs.log_model),
    "runs/set-tag": ("POST", runs.set_tag),
    "runs/delete-tag": ("POST", runs.delete_tag),
    "metrics/get-history": ("GET", runs.history),
    "metrics/get-history-bulk": ("GET", runs.history_bulk),
    "metrics/get-history-bulk-interval": ("GET", runs.history_bulk_interval),
    "artifacts/list": ("GET", files.of_run),
    "experiments/search-datasets": ("POST", experiments.search_datasets),
    "upload-artifact": ("POST", files.upload_artifact),
    "logged-models": ("POST", models.create),
    "logged-models/search": ("POST", models.search),
    "logged-models/<str:model_id>": {"GET": models.get, "PATCH": models.finalize, "DELETE": models.delete},
    "logged-models/<str:model_id>/tags": ("PATCH", models.set_tags),
    "logged-models/<str:model_id>/tags/<path:tag_key>": ("DELETE", models.delete_tag),
    "logged-models/<str:model_id>/params": ("POST", models.log_parameters),
    "logged-models/<str:model_id>/artifacts/directories": ("GET", models.list_artifacts),
    "logged-models/<str:model_id>/artifacts/files": ("GET", models.artifact),
}
_STORE: dict[str, tuple[str, Endpoint] | dict[str, Endpoint]] = {
    "artifacts": ("GET", files.listing),
    "artifacts/<path:artifact_path>": {"GET": files.download, "PUT": files.upload, "DELETE": files.delete},
    "mpu/create/<path:artifact_path>": ("POST", files.multipart_create),
    "mpu/complete/<path:artifact_path>": ("POST", files.multipart_complete),
    "mpu/abort/<path:artifact_path>": ("POST", files.multipart_abort),
}
_REFUSED = (
    (r"(?:registered-models|model-versions|webhooks)(?:/.*)?", NO_REGISTRY),
    (r"(?:traces|assessments|get-trace-artifact)(?:/.*)?", NO_TRACES),
    (r"artifacts/presigned-(?:upload|download)-url", NO_PRESIGNED),
)


def _view(entry: tuple[str, Endpoint] | dict[str, Endpoint]) -> View:
    if isinstance(entry, tuple):
        return endpoint(*entry)
    views = {method: endpoint(method, function) for method, function in entry.items()}

    @csrf_exempt
    @login_not_required
    def by_method(request: HttpRequest, **kwargs: str) -> HttpResponseBase:
        view = views.get(request.method or "", next(iter(views.values())))
        return view(request, **kwargs)

    return by_method


def _refusal(message: str) -> View:
    @csrf_exempt
    @login_not_required
    def view(_request: HttpRequest) -> HttpResponse:
        return error_response(MlflowError("NOT_IMPLEMENTED", message))

    return view


@csrf_exempt
@login_not_required
def unknown(request: HttpRequest) -> HttpResponse:
    """Answer for an endpoint of MLflow that is not served here."""
    return error_response(
        MlflowError("ENDPOINT_NOT_FOUND", f"{request.path} is not served: only experiments, runs and artifacts are")
    )


@login_not_required
def health(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("OK", content_type="text/plain")


@login_not_required
def version(_request: HttpRequest) -> HttpResponse:
    return HttpResponse(VERSION, content_type="text/plain")


@login_not_required
def server_info(_request: HttpRequest) -> HttpResponse:
    return JsonResponse(
        {"store_type": "SqlStore", "multipart_uploads_enabled": True, "multipart_downloads_enabled": False}
    )


PREFIXES = ("api/2.0/mlflow", "ajax-api/2.0/mlflow")
_VERSIONS = r"(?:ajax-)?api/[234]\.0/mlflow/"

urlpatterns = [
    path("health", health),
    path("version", version),
    path("api/3.0/mlflow/server-info", server_info),
    path("ajax-api/3.0/mlflow/server-info", server_info),
    path("api/2.0/mlflow-artifacts/parts/<str:upload_id>/<str:number>",
         endpoint("PUT", files.multipart_part), name="mlflow-part"),
    *[path(f"{prefix}/{name}", _view(entry)) for prefix in PREFIXES for name, entry in _ENDPOINTS.items()],
    *[path(f"{prefix}-artifacts/{name}", _view(entry)) for prefix in PREFIXES for name, entry in _STORE.items()],
    *[re_path(f"^{_VERSIONS}{pattern}$", _refusal(message)) for pattern, message in _REFUSED],
    re_path(r"^(?:ajax-)?api/[234]\.0/mlflow-artifacts/presigned/.*$", _refusal(NO_PRESIGNED)),
    re_path(r"^(?:ajax-)?api/[234]\.0/mlflow(?:-artifacts)?/.*$", unknown),
    re_path(r"^v1/traces$", _refusal(NO_TRACES)),  # where mlflow exports spans, in the format of OpenTelemetry
    re_path(r"^\W?model-versions/get-artifact$", unknown),
    path("get-artifact", endpoint("GET", files.get_artifact)),
]  # fmt: skip
