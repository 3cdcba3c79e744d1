"""The gallery of an experiment: panels drawn by parlab, and uploaded figures."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import F
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.ingest.files.received import display_name
from parlab.lab.models import Experiment, PictureJob, Run, Snapshot
from parlab.lab.services.pictures import file_store, picture_add, picture_delete, pictures_request
from parlab.publishing.downloads import picture_response
from parlab.publishing.images import cleaned
from parlab.publishing.tasks import send
from parlab.whole_numbers import whole_number
from runners.wire.protocol import RunState

PER_PAGE = 24
MAX_FILES = 20
MAX_RUNS = 500


@require_GET
def gallery(request: HttpRequest, slug: str) -> HttpResponse:
    experiment = get_object_or_404(Experiment, slug=slug)
    pictures = experiment.snapshots.filter(kind=Snapshot.Kind.IMAGE).select_related("run", "created_by")
    run_number = whole_number(request.GET.get("run", ""), 9)
    if run_number is not None:
        pictures = pictures.filter(run__number=run_number)
    page = Paginator(pictures.order_by(F("run__number").asc(nulls_first=True), "pk"), PER_PAGE).get_page(
        request.GET.get("page")
    )
    user = cast(User, request.user)
    ended = experiment.runs.filter(state__in=[RunState.FINISHED, RunState.OOM, RunState.FAILED])
    context = {
        "section": "experiments",
        "experiment": experiment,
        "page": page,
        "pictures": [(snapshot, snapshot.caption, snapshot.is_deletable_by(user)) for snapshot in page],
        "run_number": "" if run_number is None else str(run_number),
        "runs": list(ended.only("number", "label")[:MAX_RUNS]),
        "limit": settings.PICTURE_LIMIT_MIB * 2**20,
        **_jobs(experiment),
    }
    return render(request, "reports/gallery.html", context)


def _jobs(experiment: Experiment) -> dict[str, Any]:
    """What is being drawn, and the last job where it failed."""
    jobs = PictureJob.objects.filter(run__experiment=experiment).select_related("run").order_by("-pk")
    open_jobs = list(jobs.filter(state__in=[PictureJob.State.WAITING, PictureJob.State.DRAWING]))
    last = jobs.first()
    failed = last if last is not None and last.state == PictureJob.State.FAILED else None
    return {"experiment": experiment, "jobs": open_jobs, "failed": failed}


@require_GET
def gallery_live(request: HttpRequest, slug: str) -> HttpResponse:
    """Answer a poll with the progress of drawing; reload the page when all pictures are drawn."""
    jobs = _jobs(get_object_or_404(Experiment, slug=slug))
    if not jobs["jobs"]:
        return HttpResponse(headers={"HX-Refresh": "true"})
    return render(request, "reports/gallery_jobs.html", jobs)


def _back(slug: str) -> HttpResponseRedirect:
    return HttpResponseRedirect(reverse("gallery", args=[slug]))


@require_POST
@permission_required("lab.add_snapshot", raise_exception=True)
def upload(request: HttpRequest, slug: str) -> HttpResponse:
    """Store uploaded pictures. Each one is accepted, or rejected with a reason."""
    experiment = get_object_or_404(Experiment, slug=slug)
    files = request.FILES.getlist("files")
    if not files or len(files) > MAX_FILES:
        messages.error(request, f"{len(files) or 'No'} pictures selected; select 1 to {MAX_FILES}.")
        return _back(slug)
    number = whole_number(request.POST.get("run", ""), 9)
    run = experiment.runs.filter(number=number).first() if number is not None else None
    count = 0
    for file in files:
        name = display_name(file.name or "picture")
        try:
            clean = cleaned(file, name=name, size=file.size or 0, limit=settings.PICTURE_LIMIT_MIB * 2**20)
        except ValueError as problem:
            messages.error(request, f"Not uploaded: {problem}.")
            continue
        stored = file_store(data=clean.data, media_type=clean.media_type, width=clean.width, height=clean.height)
        picture_add(
            experiment=experiment,
            run=run,
            file=stored,
            caption=request.POST.get("caption", "") or name,
            facts={"origin": "uploaded", "name": name},
            user=cast(User, request.user),
        )
        count += 1
    if count:
        messages.success(request, f"Uploaded {count} picture{'' if count == 1 else 's'} without metadata.")
    return _back(slug)


@require_POST
@permission_required("lab.add_snapshot", raise_exception=True)
def draw(request: HttpRequest, slug: str) -> HttpResponse:
    """Queue the drawing of the panels of a run."""
    number = whole_number(request.POST.get("run", ""), 9)
    run = get_object_or_404(Run, experiment__slug=slug, number=number)
    job = pictures_request(user=cast(User, request.user), run=run)
    send(job.pk)
    return _back(slug)


@require_GET
def picture_file(_request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    """Send a picture as a download."""
    return picture_response(get_object_or_404(Snapshot, pk=pk, experiment__slug=slug, kind=Snapshot.Kind.IMAGE))


@require_POST
def delete(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    picture = get_object_or_404(Snapshot, pk=pk, experiment__slug=slug, kind=Snapshot.Kind.IMAGE)
    if not picture.is_deletable_by(cast(User, request.user)):
        raise PermissionDenied("this picture belongs to another user")
    picture_delete(snapshot=picture)
    messages.success(request, "Picture deleted. Published reports keep their copy.")
    return _back(slug)
