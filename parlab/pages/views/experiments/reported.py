"""What runs reported: their artifacts, and the table of names of an experiment."""

from __future__ import annotations

import mimetypes
from typing import IO, Any

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from parlab.formats.grammar.names import SETTINGS
from parlab.formats.grammar.quantities import CHOICES
from parlab.lab.models import Artifact, Experiment, NameMeaning, Run
from parlab.pages.reads.runs.logged_values import PICTURES, shown_values, table_of
from parlab.publishing.downloads import UNSTYLED, safe_name
from parlab.tracking.artifacts import object_open
from parlab.tracking.meanings import NameRow, meanings_set, metric_rows, setting_rows

PREVIEW_BYTES = 64 * 1024
MAX_ROWS = 1_000
"""Maximum number of parameters, tags and artifacts on the page of a run."""
NOTHING = "-"
KINDS = {"metric": NameMeaning.Kind.METRIC, "setting": NameMeaning.Kind.SETTING}


def reported_context(run: Run) -> dict[str, Any]:
    """Return what the page of a run shows of its reports; empty for a run that parlab launched."""
    tracked = getattr(run, "tracked", None)
    if tracked is None:
        return {}
    artifacts = tracked.artifacts.order_by("path")
    return {
        "reported": {
            "sources": sorted((run.summary.get("sources") or {}).items()),
            "parameters": list(tracked.parameters.values_list("key", "value")[:MAX_ROWS]),
            "tags": list(tracked.tags.values_list("key", "value")[:MAX_ROWS]),
            "artifacts": list(artifacts[:MAX_ROWS]),
            "artifact_count": artifacts.count(),
            "values": shown_values(tracked),
        }
    }


def _artifact(slug: str, number: int, path: str) -> Artifact:
    artifacts = Artifact.objects.select_related("tracked__run__experiment")
    run = {"tracked__run__experiment__slug": slug, "tracked__run__number": number}
    return get_object_or_404(artifacts, path=path, **run)


def _opened(stored: Artifact) -> IO[bytes]:
    try:
        return object_open(stored.sha256)
    except FileNotFoundError as error:
        text = f"the bytes of {stored.path} are missing on the disk of the server; log the file again"
        raise Http404(text) from error


@require_GET
def artifact(_request: HttpRequest, slug: str, number: int, path: str) -> FileResponse:
    """Send an artifact as a download; a browser never opens it on this site."""
    stored = _artifact(slug, number, path)
    response = FileResponse(
        _opened(stored),
        as_attachment=True,
        filename=safe_name(stored.path.rpartition("/")[2]),
        content_type="application/octet-stream",
    )
    for name, value in UNSTYLED.items():
        response.headers[name] = value
    return response


@require_GET
def artifact_picture(_request: HttpRequest, slug: str, number: int, path: str) -> FileResponse:
    """Send an artifact that is a picture, to be shown within a page."""
    stored = _artifact(slug, number, path)
    media_type = mimetypes.guess_type(stored.path)[0] or ""
    if not stored.path.lower().endswith(PICTURES) or not media_type.startswith("image/"):
        raise Http404(f"{path} is not a picture that a page shows; download it")
    response = FileResponse(_opened(stored), content_type=media_type)
    for name, value in UNSTYLED.items():
        response.headers[name] = value
    return response


@require_GET
def artifact_text(request: HttpRequest, slug: str, number: int, path: str) -> HttpResponse:
    """Show the beginning of an artifact as text."""
    stored = _artifact(slug, number, path)
    with _opened(stored) as file:
        head = file.read(PREVIEW_BYTES)
    run = stored.tracked.run
    context = {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "artifact": stored,
        "text": None if b"\x00" in head else head.decode("utf-8", "replace"),
        "shown": len(head),
        "is_picture": stored.path.lower().endswith(PICTURES),
        "table": table_of(stored),
    }
    return render(request, "pages/run/artifact.html", context)


@require_http_methods(["GET", "POST"])
def names(request: HttpRequest, slug: str) -> HttpResponse:
    """Show what the names of an experiment's reported runs mean; on POST, save the choices of one kind."""
    experiment = get_object_or_404(Experiment, slug=slug)
    if request.method == "POST":
        return _names_save(request, experiment)
    titles = {key: choice.title for key, choice in CHOICES.items()}
    fields = {name: name for name in SETTINGS}
    tables = [
        {"kind": "metric", "title": "Metrics", "rows": _options(metric_rows(experiment), titles)},
        {"kind": "setting", "title": "Parameters", "rows": _options(setting_rows(experiment), fields)},
    ]
    context = {"section": "experiments", "experiment": experiment, "tables": tables}
    return render(request, "pages/experiments/names.html", context)


def _options(rows: list[NameRow], titles: dict[str, str]) -> list[dict[str, Any]]:
    """Return the rows with their choices: the guess first, then every meaning, then none."""
    options = []
    for number, row in enumerate(rows):
        guess = titles.get(row.guess, row.guess) or "no meaning"
        value = "" if row.chosen is None else row.chosen or NOTHING
        choices = [("", f"Automatic: {guess}"), *titles.items(), (NOTHING, "No meaning")]
        options.append({"number": number, "row": row, "value": value, "choices": choices})
    return options


@permission_required("lab.change_experiment", raise_exception=True)
def _names_save(request: HttpRequest, experiment: Experiment) -> HttpResponse:
    kind = KINDS.get(request.POST.get("kind", ""))
    if kind is None:
        raise Http404("unknown kind of names; use metric or setting")
    rows = metric_rows(experiment) if kind == NameMeaning.Kind.METRIC else setting_rows(experiment)
    # Names may contain any character, so fields are numbered and each number is sent with its name.
    chosen = {
        request.POST.get(f"name-{number}", ""): request.POST.get(f"meaning-{number}", "") for number in range(len(rows))
    }
    stated = {row.name for row in rows}
    meanings = {name: "" if value == NOTHING else value for name, value in chosen.items() if value and name in stated}
    try:
        count = meanings_set(experiment=experiment, kind=kind, meanings=meanings)
    except ValueError as error:
        messages.error(request, f"Not saved: {error}.")
    else:
        messages.success(request, f"Saved; {count} run{'' if count == 1 else 's'} computed again.")
    return redirect("names", experiment.slug)
