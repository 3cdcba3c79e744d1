"""Log formats of the team: accepted from the guess of an upload, listed, edited, exchanged as JSON, deleted."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET, require_http_methods, require_POST
from pydantic import ValidationError

from parlab.formats.learnt.learnt import Learnt
from parlab.lab.models import LogFormat
from parlab.lab.selectors.log_formats import log_format_rows, log_format_versions
from parlab.lab.services.access.rights import require_change
from parlab.lab.services.log_formats import log_format_delete, log_format_save
from parlab.pages.forms.log_formats import form_of, parse
from parlab.publishing.downloads import safe_name

MAX_JSON = 2 * 2**20
may_import = permission_required("lab.add_run", raise_exception=True)


@require_http_methods(["GET", "POST"])
@may_import
def log_formats(request: HttpRequest) -> HttpResponse:
    """List the formats; on POST, add one from a JSON file."""
    problem = _upload(request) if request.method == "POST" else ""
    if request.method == "POST" and not problem:
        return redirect("log-formats")
    context = {"section": "formats", "rows": log_format_rows(), "problem": problem}
    return render(request, "pages/files/log_formats.html", context, status=400 if problem else 200)


def _upload(request: HttpRequest) -> str:
    """Save the format of an uploaded JSON file; returns the problem with its remedy, empty if there is none."""
    file = request.FILES.get("file")
    if file is None:
        return "No file selected. Select a JSON file that --learn or this page has written."
    if (file.size or 0) > MAX_JSON:
        return f"{file.name} is larger than {MAX_JSON >> 20} MiB. Select a JSON file that --learn has written."
    try:
        saved = log_format_save(definition=Learnt.model_validate_json(file.read()), user=cast(User, request.user))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        return f"{file.name}: {place}: {first['msg']}. Correct it, or learn the format again."
    except ValueError as error:
        return f"{file.name}: {error}."
    messages.success(request, f"Saved {saved}.")
    return ""


def _versions(name: str) -> list[LogFormat]:
    versions = log_format_versions(name)
    if not versions:
        raise Http404(f"no log format {name}")
    return versions


@require_http_methods(["GET", "POST"])
@may_import
def log_format(request: HttpRequest, name: str) -> HttpResponse:
    """Show a format as a form; on POST, save it as the next version."""
    versions = _versions(name)
    newest = versions[0]
    base = Learnt.model_validate(newest.definition)
    errors: dict[str, str] = {}
    if request.method == "POST":
        sent = {**request.POST.dict(), "name": name}
        if request.POST.get("version") != str(newest.version):
            errors[""] = f"{newest} was saved in the meantime; check its slots, then save again"
        else:
            parsed = parse(base, sent)
            errors = parsed.errors
            if parsed.definition is not None:
                saved = log_format_save(definition=parsed.definition, user=cast(User, request.user))
                messages.success(request, f"Saved {saved}. Files that were read with earlier versions keep them.")
                return redirect("log-format", name)
    context = {
        "section": "formats",
        "format": newest,
        "versions": versions,
        "form": form_of(base, request.POST.dict() if errors else None, errors),
        "files": sum(getattr(version, "files", 0) for version in versions),
    }
    return render(request, "pages/files/log_format.html", context, status=400 if errors else 200)


@require_GET
@may_import
def export(request: HttpRequest, name: str) -> HttpResponse:
    """Send a version, by default the newest, as the JSON file of the command line."""
    versions = _versions(name)
    wanted = request.GET.get("version", str(versions[0].version))
    version = next((version for version in versions if str(version.version) == wanted), None)
    if version is None:
        raise Http404(f"log format {name} has no version {wanted}")
    text = Learnt.model_validate(version.definition).model_dump_json(indent=1) + "\n"
    response = HttpResponse(text, content_type="application/json")
    response["Content-Disposition"] = content_disposition_header(True, f"{safe_name(name)}.json") or "attachment"
    return response


@require_POST
@may_import
def delete(request: HttpRequest, name: str) -> HttpResponse:
    require_change(request.user, *log_format_versions(name))
    count = log_format_delete(name=name)
    if count:
        messages.success(request, f"Deleted the log format {name}. Runs that were read with it stay.")
    return redirect("log-formats")
