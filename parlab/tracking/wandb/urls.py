"""Where W&B's clients look: `/graphql`, `/files/...`, and the addresses that they print for people."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from parlab.lab.models.access.viewer import viewing

from . import file_stream, files
from .operations import graphql
from .projects import find_experiment, find_run
from .protocol import WandbError, endpoint, failure


@require_GET
def run_page(request: HttpRequest, entity: str, project: str, run: str) -> HttpResponse:
    """Lead from the address that a client prints to the page of the run."""
    if entity == "experiments":  # the address of a run of ours, without its last slash
        return HttpResponseRedirect(f"{request.path}/")
    experiment = find_experiment(entity, project)
    found = find_run(experiment, run) if experiment is not None else None
    if found is None:
        raise Http404(f"run {entity}/{project}/{run} does not exist")
    return HttpResponseRedirect(found.tracked.run.get_absolute_url())


@csrf_exempt
@login_not_required
def discarded(_request: HttpRequest, kind: str) -> HttpResponse:
    """Accept what clients send about themselves, and keep none of it: a refusal would fill the log of the server."""
    return HttpResponse(f"{kind} are not kept\n", content_type="text/plain")


def stored(request: HttpRequest, key: str, path: str) -> HttpResponseBase:
    """Store or return a file of a run."""
    if request.method == "GET" and files.is_signed(request, key, path):
        try:
            with viewing(None):  # the signature is the permission
                return files.file_response(key, path)
        except WandbError as error:
            return failure(error)
    view = _upload if request.method == "PUT" else _download
    return view(request, key=key, path=path)


_upload = endpoint("PUT", files.upload, scope="report")
_download = endpoint("GET", files.download, scope="read")

urlpatterns = [
    path("graphql", graphql, name="wandb-operation"),
    path("files/<str:entity>/<str:project>/<str:run>/file_stream",
         endpoint("POST", file_stream.receive, scope="report"), name="wandb-stream"),
    path("wandb/files/<str:key>/<path:path>", csrf_exempt(login_not_required(stored)), name="wandb-file"),
    path("sdk/otel/v1/<str:kind>", discarded, name="wandb-telemetry"),
    path("<str:entity>/<str:project>/runs/<str:run>", run_page),
]  # fmt: skip
