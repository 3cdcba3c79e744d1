"""Paste a log: what parlab reads in a pasted text, shown before anything is stored."""

from __future__ import annotations

from io import BytesIO
from typing import Any, NamedTuple, cast

from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from parlab.charts.format import quantity
from parlab.ingest.files.imports import Refused, upload_import
from parlab.ingest.files.preview import Preview, preview
from parlab.ingest.files.received import display_name
from parlab.lab.models import Experiment
from parlab.pages.reads.import_text import marked_preview, read_text

PASTE_LIMIT = 2 * 2**20
"""Bytes of a pasted text: it is read again with each change. Larger texts are files."""
NAME = "pasted.log"
TAKE = "take:"
"""Begins the name of the field of a finding."""


class Pasted(NamedTuple):
    """A pasted text with the name of the file that it becomes."""

    name: str
    content: bytes

    @property
    def problem(self) -> str:
        """Why it cannot be read, with the remedy; empty if it can."""
        if len(self.content) <= PASTE_LIMIT:
            return ""
        return (
            f"The text is {quantity(len(self.content), 'B')}; the limit for pasting is {quantity(PASTE_LIMIT, 'B')}."
            " Save it as a file and drop the file here."
        )

    def file(self) -> SimpleUploadedFile:
        return SimpleUploadedFile(self.name, self.content, "text/plain")


def pasted(request: HttpRequest) -> Pasted:
    """Return the text of a form; browsers send its line breaks as CR LF."""
    text = request.POST.get("text", "").replace("\r\n", "\n")
    name = display_name(request.POST.get("name", "").strip() or NAME)
    return Pasted(name if "." in name else f"{name}.log", text.encode("utf-8", "replace"))


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def paste(request: HttpRequest) -> HttpResponse:
    """Answer with what would be imported; nothing is stored."""
    text = pasted(request)
    context: dict[str, Any] = {"name": text.name, "problem": text.problem, "is_empty": not text.content.strip()}
    context["form"] = request.POST.get("form", "")[:40]
    if not context["problem"] and not context["is_empty"]:
        context |= _reading(text, request)
    return render(request, "pages/files/paste_answer.html", context)


def _reading(text: Pasted, request: HttpRequest) -> dict[str, Any]:
    target = Experiment.objects.filter(slug=request.POST.get("experiment", "").replace("\0", "")).first()
    try:
        imports = upload_import(
            experiment=target, name=text.name, stream=BytesIO(text.content), user=cast(User, request.user), dry_run=True
        )
    except Refused as refusal:
        # The rest of the message lists all formats, for those who name one.
        return {"refused": str(refusal).partition(";")[0]}
    shown = [preview(document, dry_run=True) for document in imports]
    content, chosen = text.content.decode(), choices_in(request)
    files = [
        (one, read_text(one, marked_preview(content, one, made.document), chosen))
        for one, made in zip(shown, imports, strict=True)
    ]
    runs = sum(one.run_count for one in shown)
    return {"files": files, "runs": runs, "target": target, "can_import": any(_is_new(one) for one in shown)}


def choices_in(request: HttpRequest) -> dict[str, str]:
    """Return what a person took of contradicting numbers, by the key of the finding."""
    return {name.removeprefix(TAKE): str(value) for name, value in request.POST.items() if name.startswith(TAKE)}


def _is_new(shown: Preview) -> bool:
    return shown.status.startswith("would") and bool(shown.run_count or shown.tables)
