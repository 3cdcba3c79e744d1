"""Import of files: upload, preview, import."""

from __future__ import annotations

import errno
import logging
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from parlab.charts.format import quantity
from parlab.ingest.imports import Refused
from parlab.ingest.preview import Preview
from parlab.ingest.preview import preview as described
from parlab.ingest.reading import formats
from parlab.ingest.received import display_name
from parlab.lab.models import Experiment
from parlab.pages import uploads
from parlab.pages.uploads import Upload
from parlab.tracking.imports import upload_import

logger = logging.getLogger(__name__)

MAX_FILES = 100
MAX_EXPERIMENTS = 500
"""Maximum number of experiments in the form. To import into others, use the page of the experiment."""


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_run", raise_exception=True)
def choose(request: HttpRequest) -> HttpResponse:
    """Show the form; on POST, store the files and show their preview."""
    if request.method == "GET":
        return _form(request, selected=request.GET.get("experiment", ""))
    files = request.FILES.getlist("files")
    slug, format = request.POST.get("experiment", ""), request.POST.get("format", "")
    target = Experiment.objects.filter(slug=slug).first() if slug else None
    problem = _problem(files, slug, target, format)
    if problem:
        return _form(request, selected=slug, format=format, problem=problem)
    user = cast(User, request.user)
    try:
        upload = uploads.upload_keep(files, user=user.pk, experiment=target.pk if target else None, format=format)
    except OSError as error:
        logger.exception("an upload could not be stored")
        return _form(request, selected=slug, format=format, problem=_disk(error))
    _run(upload, user, dry_run=True)
    upload.save()
    return redirect("import-preview", upload.key)


def _problem(files: list[UploadedFile[Any]], slug: str, target: Experiment | None, format: str) -> str:
    """Return the first problem of the form with its remedy; empty if it is valid."""
    limit = settings.UPLOAD_LIMIT_MIB * 2**20
    size = sum(file.size or 0 for file in files)
    if not files:
        return "No file selected. Select one or more files, then press Preview."
    if len(files) > MAX_FILES:
        return f"{len(files)} files selected; the limit is {MAX_FILES}. Pack them into an archive, or import in parts."
    if size > limit:
        return (
            f"{display_name(files[0].name or '')}{' and the others are' if len(files) > 1 else ' is'}"
            f" {quantity(size, 'B')}, above the limit of {quantity(limit, 'B')}. Import fewer files at a time, or ask"
            " an administrator to raise PARLAB_UPLOAD_LIMIT_MIB or to use manage.py ingest."
        )
    if slug and target is None:
        return f"Experiment {slug} no longer exists. Select another experiment, or create a new one."
    if format and format not in formats():
        return f"Unknown format {format}. Select a format from the list, or let parlab detect it."
    return ""


def _disk(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk of the server is full; no file was stored. Ask an administrator to free space, then try again."
    return f"The server could not store the files: {error.strerror or error}. Ask an administrator."


def _form(request: HttpRequest, *, selected: str, format: str = "", problem: str = "") -> HttpResponse:
    context = {
        "section": "import",
        "experiments": Experiment.objects.order_by("name").only("name", "slug")[:MAX_EXPERIMENTS],
        "formats": formats(),
        "selected_experiment": selected,
        "format": format,
        "problem": problem,
        "limit": settings.UPLOAD_LIMIT_MIB * 2**20,
    }
    return render(request, "pages/import.html", context, status=400 if problem else 200)


def _run(upload: Upload, user: User, *, dry_run: bool) -> None:
    """Import or preview the files of an upload one by one. A rejected file does not stop the others."""
    target = Experiment.objects.filter(pk=upload.experiment).first() if upload.experiment is not None else None
    for number, file in enumerate(upload.files):
        file.previews, file.refused = [], ""
        if upload.experiment is not None and target is None:
            file.refused = "the experiment was deleted in the meantime; start again with another experiment"
            continue
        try:
            with upload.open(number) as stream:
                imported = upload_import(
                    experiment=target,
                    name=file.name,
                    stream=stream,
                    user=user,
                    format=upload.format or None,
                    dry_run=dry_run,
                )
        except Refused as error:
            file.refused = str(error)
        except OSError as error:
            logger.exception("upload %s file %d could not be read", upload.key, number)
            file.refused = _disk(error)
        else:
            file.previews = [described(document, dry_run=dry_run) for document in imported]


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_run", raise_exception=True)
def preview(request: HttpRequest, key: str) -> HttpResponse:
    """Show the preview of an upload; on POST, import it. A second POST has no effect."""
    user = cast(User, request.user)
    if request.method == "GET":
        upload = uploads.upload_find(key, user=user.pk)
        return _gone(request) if upload is None else _shown(request, upload)
    with uploads.upload_claimed(key, user=user.pk) as upload:
        if upload is None:
            return _gone(request)
        if not upload.is_done:
            _run(upload, user, dry_run=False)
            if any(file.previews for file in upload.files):
                upload.finish()
            else:
                upload.save()
    results = [result for file in upload.files for result in file.previews]
    experiments = {result.experiment for result in results}
    if len(experiments) == 1 and not any(file.refused for file in upload.files):
        messages.success(request, _outcome(results))
        return redirect("experiment", results[0].experiment)
    return redirect("import-preview", key)


def _outcome(results: list[Preview]) -> str:
    """Return a sentence about the imported files."""
    subject = results[0].name if len(results) == 1 else f"{len(results)} files"
    if all(result.status == "already there" for result in results):
        return f"{subject} {'was' if len(results) == 1 else 'were'} already imported; nothing was changed."
    if all(result.status == "continued" for result in results):
        return f"{subject} {'has' if len(results) == 1 else 'have'} grown; the runs continue with the new lines."
    runs, findings = sum(result.run_count for result in results), sum(len(result.findings) for result in results)
    findings_text = f", {findings} {'finding' if findings == 1 else 'findings'}" if findings else ""
    return f"Imported {subject}: {runs} {'run' if runs == 1 else 'runs'}{findings_text}."


def _shown(request: HttpRequest, upload: Upload) -> HttpResponse:
    results = [result for file in upload.files for result in file.previews]
    context = {
        "section": "import",
        "upload": upload,
        "new": [result for result in results if result.status.startswith("would")],
        "target": Experiment.objects.filter(pk=upload.experiment).first() if upload.experiment else None,
    }
    return render(request, "pages/import_preview.html", context)


def _gone(request: HttpRequest) -> HttpResponse:
    messages.error(request, "This upload was discarded or has expired. Upload the files again.")
    return redirect("import")


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def discard(request: HttpRequest, key: str) -> HttpResponse:
    user = cast(User, request.user)
    with uploads.upload_claimed(key, user=user.pk) as upload:
        if upload is not None:
            upload.discard()
    messages.info(request, "Nothing was imported. The uploaded files were deleted.")
    return redirect("import")
