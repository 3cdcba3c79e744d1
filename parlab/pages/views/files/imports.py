"""Import of files: upload, preview, import."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from parlab.charts.format import quantity
from parlab.formats.learnt.learnt import FITTING, PREFIX, Learnt, fit
from parlab.ingest.files.preview import Preview
from parlab.ingest.files.received import display_name
from parlab.ingest.files.requested_format import formats
from parlab.lab.models import Experiment, Run
from parlab.lab.selectors.log_formats import log_format_versions, log_formats
from parlab.lab.services.log_formats import log_format_save
from parlab.pages.forms import uploads
from parlab.pages.forms.log_formats import FormatForm, form_of, parse
from parlab.pages.forms.upload_work import beginning_text, disk_problem, is_working, progress_of, upload_read
from parlab.pages.forms.uploads import File, Upload
from parlab.pages.reads.import_text import ReadText, marked_preview, read_text

from .pasting import PASTE_LIMIT, choices_in, pasted

logger = logging.getLogger(__name__)

MAX_FILES = 100
MAX_EXPERIMENTS = 500
"""Maximum number of experiments in the form. To import into others, use the page of the experiment."""


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_run", raise_exception=True)
def choose(request: HttpRequest) -> HttpResponse:
    """Show the form; on POST, store the files or the pasted text and show their preview."""
    if request.method == "GET":
        return _form(request, selected=request.GET.get("experiment", ""))
    return _received(request, dry_run=True)


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def now(request: HttpRequest) -> HttpResponse:
    """Import what the paste box has shown, and lead to its run or experiment; if it cannot be read, to its preview."""
    return _received(request, dry_run=False)


def _received(request: HttpRequest, *, dry_run: bool) -> HttpResponse:
    text = pasted(request)
    if text.problem:
        return _form(request, selected=request.POST.get("experiment", ""), problem=text.problem)
    files: list[UploadedFile[Any]] = request.FILES.getlist("files") or ([text.file()] if text.content.strip() else [])
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
        return _form(request, selected=slug, format=format, problem=disk_problem(error))
    upload.choices = choices_in(request)
    upload_read(upload, user, dry_run=dry_run)
    if not upload.is_done and not upload.work and not dry_run:
        upload_read(upload, user, dry_run=True)  # its preview offers a guess of the format
    if upload.is_done and (run := _only_run(upload)):
        messages.success(request, _outcome(upload.files[0].previews))
        return redirect(run)
    return _after(request, upload) if upload.is_done else redirect("import-preview", upload.key)


def _only_run(upload: Upload) -> Run | None:
    results = [result for file in upload.files for result in file.previews]
    if len(results) != 1 or results[0].run_count != 1 or results[0].source is None:
        return None
    return Run.objects.filter(source=results[0].source).select_related("experiment").first()


def _problem(files: list[UploadedFile[Any]], slug: str, target: Experiment | None, format: str) -> str:
    """Return the first problem of the form with its remedy; empty if it is valid."""
    limit = settings.UPLOAD_LIMIT_MIB * 2**20
    size = sum(file.size or 0 for file in files)
    if not files:
        return "Paste a log, or select one or more files."
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
    if format and format not in {*formats(), *_team_formats()}:
        return f"Unknown format {format}. Select a format from the list, or let parlab detect it."
    return ""


def _team_formats() -> list[str]:
    return [f"{PREFIX}{format.name}" for format in log_formats()]


def _form(request: HttpRequest, *, selected: str, format: str = "", problem: str = "") -> HttpResponse:
    context = {
        "section": "import",
        "experiments": Experiment.objects.order_by("name").only("name", "slug")[:MAX_EXPERIMENTS],
        "formats": formats(),
        "team_formats": _team_formats(),
        "selected_experiment": selected,
        "format": format,
        "problem": problem,
        "limit": settings.UPLOAD_LIMIT_MIB * 2**20,
        "paste_limit": PASTE_LIMIT,
        "text": request.POST.get("text", "")[:PASTE_LIMIT],
    }
    return render(request, "pages/files/import.html", context, status=400 if problem else 200)


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_run", raise_exception=True)
def preview(request: HttpRequest, key: str) -> HttpResponse:
    """Show the preview of an upload; on POST, import it, or `show` another file. A second POST has no effect."""
    user = cast(User, request.user)
    if request.method == "GET":
        upload = uploads.upload_find(key, user=user.pk)
        return _gone(request) if upload is None else _shown(request, upload)
    with uploads.upload_claimed(key, user=user.pk) as upload:
        if upload is None:
            return _gone(request)
        if not upload.is_done and not is_working(upload):
            upload.choices |= choices_in(request)
            if shown := request.POST.get("show"):
                upload.save()  # the choices so far, of the file that was shown
                number, _ = shown_file(shown)
                return redirect(
                    f"{reverse('import-preview', args=[key])}?{urlencode({'show': shown})}#file-{number + 1}"
                )
            upload_read(upload, user, dry_run="again" in request.POST)
    return _after(request, upload)


def shown_file(value: str) -> tuple[int, int]:
    """Return the file of an upload and the one in its archive that `show` names, `0-2`; the first ones by default."""
    match = re.fullmatch(r"(\d{1,4})-(\d{1,4})", value)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _after(request: HttpRequest, upload: Upload) -> HttpResponse:
    """Lead to the experiment of an import that is complete, otherwise to the preview."""
    results = [result for file in upload.files for result in file.previews]
    experiments = {result.experiment for result in results}
    is_complete = upload.is_done and not upload.work and not any(file.refused for file in upload.files)
    if is_complete and len(experiments) == 1 and (slug := results[0].experiment):
        messages.success(request, _outcome(results))
        return redirect("experiment", slug)
    return redirect("import-preview", upload.key)


@require_GET
@permission_required("lab.add_run", raise_exception=True)
def live(request: HttpRequest, key: str) -> HttpResponse:
    """Answer a poll with the progress, or lead on when the work has ended."""
    upload = uploads.upload_find(key, user=cast(User, request.user).pk)
    if upload is not None and is_working(upload):
        return render(request, "pages/files/import_progress.html", _progress(upload))
    onward = _gone(request) if upload is None else _after(request, upload)
    response = HttpResponse()
    response["HX-Redirect"] = onward.headers["Location"]
    return response


def _progress(upload: Upload) -> dict[str, Any]:
    progress = progress_of(upload)
    return {"upload": upload, "progress": progress, "left_s": progress.left_s if progress else None}


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def accept(request: HttpRequest, key: str, number: int) -> HttpResponse:
    """Read a file with a format of the team, or save its guess as one and read it with that."""
    user = cast(User, request.user)
    with uploads.upload_claimed(key, user=user.pk) as upload:
        if upload is None:
            return _gone(request)
        if upload.is_done or is_working(upload) or number >= len(upload.files):
            return redirect("import-preview", key)
        file = upload.files[number]
        errors = _choose_format(request, file, user)
        if errors:
            return _shown(request, upload, number, errors)
        upload_read(upload, user, dry_run=True, only=[number])
    return redirect(f"{reverse('import-preview', args=[key])}#file-{number + 1}")


def _choose_format(request: HttpRequest, file: File, user: User) -> dict[str, str]:
    """Set the format of a file by a form; returns errors by field."""
    if "use" in request.POST:
        name = request.POST["use"]
        if name and name not in {format.name for format in log_formats()}:
            return {"": f"the log format {name[:60]!r} was deleted in the meantime; accept the guess instead"}
        file.format = f"{PREFIX}{name}" if name else ""
        return {}
    if file.guess is None or file.guess.learnt is None:
        return {"": "there is no guess for this file; choose its format when you upload it"}
    parsed = parse(file.guess.learnt, request.POST.dict())
    if parsed.definition is None:
        return parsed.errors
    if log_format_versions(parsed.definition.name):
        return {"name": f"a log format {parsed.definition.name!r} exists; enter another name, or edit that format"}
    try:
        saved = log_format_save(definition=parsed.definition, user=user)
    except ValueError as problem:
        return {"name": str(problem)}
    file.format = f"{PREFIX}{saved.name}"
    messages.success(request, f"Saved the log format {saved.name}. It is offered for other files of this shape.")
    return {}


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


class FilePart(NamedTuple):
    """A file of the preview, with the form of its guessed format if no known one fits."""

    file: File
    form: FormatForm | None
    fitting: list[str]
    """Formats of the team that fit the file."""
    read: ReadText | None = None
    """What was read, in its text; None for a store of another tracker, and after the import."""
    shown: int = 0
    """The file of an archive whose text this is."""
    tabs: Sequence[tuple[int, Preview]] = ()
    """The files of an archive that can be shown; empty for a single file."""

    @property
    def preview(self) -> Preview:
        return self.file.previews[self.shown]


def _shown(
    request: HttpRequest, upload: Upload, with_errors: int | None = None, errors: dict[str, str] | None = None
) -> HttpResponse:
    results = [result for file in upload.files for result in file.previews]
    context = {
        "section": "import",
        "upload": upload,
        "parts": _parts(request, upload, with_errors, errors),
        "new": [result for result in results if result.status.startswith("would")],
        "target": Experiment.objects.filter(pk=upload.experiment).first() if upload.experiment else None,
        "is_working": is_working(upload),
        **_progress(upload),
    }
    return render(request, "pages/files/import_preview.html", context, status=400 if errors else 200)


def _parts(
    request: HttpRequest, upload: Upload, with_errors: int | None, errors: dict[str, str] | None
) -> list[FilePart]:
    """Return the files with their forms; one of them may show the errors of what a person has sent."""
    definitions = [Learnt.model_validate(format.definition) for format in log_formats()]
    parts = []
    chosen, member = shown_file(request.GET.get("show", ""))
    for number, file in enumerate(upload.files):
        guess = file.guess.learnt if file.guess and not upload.is_done else None
        texts = [] if upload.is_done else upload.texts(number)
        shown = member if number == chosen and member in texts else texts[0] if texts else 0
        read = None if upload.is_done else _read_text(upload, number, shown, has_text=bool(texts))
        tabs = [(at, file.previews[at]) for at in texts] if len(file.previews) > 1 else []
        if guess is None:
            parts.append(FilePart(file, None, [], read, shown, tabs))
            continue
        sent = request.POST.dict() if number == with_errors else None
        fitting = [d.name for d in definitions if f"{PREFIX}{d.name}" != file.format and fit(guess, d) >= FITTING]
        form = form_of(guess, sent, errors if sent is not None else None)
        parts.append(FilePart(file, form, fitting, read, shown, tabs))
    return parts


def _read_text(upload: Upload, number: int, member: int, *, has_text: bool) -> ReadText | None:
    previews = upload.files[number].previews
    if not has_text and len(previews) != 1:
        return None
    text = upload.text(number, member) if has_text else beginning_text(upload, number)
    marked = marked_preview(text, previews[member]) if text is not None else None
    return read_text(previews[member], marked, upload.choices)


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
