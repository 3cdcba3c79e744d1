"""Watches: this week, one watch with its series, one alert, feeds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast
from xml.sax.saxutils import escape, quoteattr

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import Config, Experiment, Node
from parlab.lab.services.access.rights import require_change
from parlab.pages.reads.watches import drawn, other_measures, watch_list
from parlab.pages.rows.watches import waterfall_changes
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.watch import bisecting, selectors, services
from parlab.watch.analysis.measures import measure_of
from parlab.watch.detecting import sentence_of
from parlab.watch.models import Alert, Bisect, Order, Series, Watch
from parlab.whole_numbers import whole_number

MAX_FEED = 100
MAX_CONFIGS = 300
MAX_HISTORY_BYTES = 8 * 2**20


@require_GET
def watches(request: HttpRequest) -> HttpResponse:
    """Show the alerts of the week, all watches, and the form for a new one."""
    return _list(request)


def _list(request: HttpRequest, *, status: int = 200, problem: str = "") -> HttpResponse:
    listed = watch_list()
    first = listed.open[0].row.alert if listed.open else None
    is_new = status != 200 or "config" in request.GET or "new" in request.GET or not listed.watches
    context = {
        "section": "watch",
        "listed": listed,
        "is_new": is_new,
        **({} if first is None or is_new else _alert_context(find_alert(first.watch_id, first.pk))),
        "configs": _configs() if is_new else [],
        "schedules": Watch.Schedule.choices,
        "entered": request.POST or request.GET,
        "problem": problem,
    }
    return render(request, "watch/watches.html", context, status=status)


def _configs() -> list[tuple[int, str]]:
    """Return the newest configurations with their names."""
    rows = Config.objects.order_by("-pk").values_list("pk", "experiment__name", "version")[:MAX_CONFIGS]
    return [(pk, f"{name} v{version}") for pk, name, version in rows]


@require_POST
@permission_required("watch.add_watch", raise_exception=True)
def create(request: HttpRequest) -> HttpResponse:
    fields = request.POST
    key = fields.get("config", "")
    config = get_object_or_404(Config, pk=pk) if (pk := whole_number(key)) is not None else None
    try:
        watch = services.watch_create(
            name=fields.get("name", ""),
            user=cast(User, request.user),
            config=config,
            key=fields.get("key", ""),
            schedule=fields.get("schedule", ""),
            first_at=_time(fields.get("first_at", "")),
            repository=fields.get("repository", "").strip(),
            branch=fields.get("branch", "").strip(),
            on_node_change="on_node_change" in fields,
            repeats=_count(fields.get("repeats", "1"), "repeats"),
            max_extra=_count(fields.get("max_extra", "6"), "max_extra"),
        )
    except ValueError as problem:
        return _list(request, status=422, problem=f"Not created: {problem}.")
    services.watch_refresh(watch=watch)
    messages.success(request, f"Watching {watch.name}. Results of its configuration or key appear here.")
    return redirect(watch)


def _time(text: str) -> datetime | None:
    """Read a time in UTC; an empty text is no time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"first run {text[:40]!r} is not a time; use for example 2030-01-31T02:00") from None


def _count(text: str, name: str) -> int:
    count = whole_number(text, 3)
    if count is None:
        raise ValueError(f"{name} {text[:20]!r} is no number; use for example 1")
    return count


@require_GET
def watch(request: HttpRequest, pk: int) -> HttpResponse:
    return render(request, "watch/watch.html", _context(_find(pk)) | {"listed": watch_list()})


def _context(row: Watch) -> dict[str, Any]:
    series = selectors.series_rows(row)
    alerts = row.alerts.select_related("first_bad__run__experiment", "last_good", "changed_by", "watch__config")
    return {
        "section": "watch",
        "watch": row,
        "series": series,
        "drawn": series[:12],
        "alerts": selectors.alert_rows(alerts),
        "results": row.results.select_related("run__experiment").order_by("-position", "-at", "-pk")[:20],
        "count": row.results.count(),
        "orders": row.orders.all()[:10],
        "experiments": Experiment.objects.filter(archived_at=None).order_by("-updated_at")[:MAX_CONFIGS],
        "is_live": row.orders.filter(state=Order.State.OPEN).exists(),
        "notes": [*selectors.input_notes(row), *_notes(series)][:10],
    }


def _notes(series: list[selectors.SeriesRow]) -> list[str]:
    """Return what the series report, each text once."""
    return list(dict.fromkeys(note for entry in series for note in entry.series.notes))


@require_POST
@permission_required("watch.change_watch", raise_exception=True)
def act(request: HttpRequest, pk: int, action: str) -> HttpResponse:
    """Pause, resume, refresh, run or delete a watch, or import a history into it."""
    row = _find(pk)
    if action in ("pause", "resume"):
        Watch.objects.filter(pk=row.pk).update(is_enabled=action == "resume")
        messages.success(request, "Resumed." if action == "resume" else "Paused: it neither runs nor collects.")
    elif action in ("mute", "unmute"):
        services.watch_mute(watch=row, user=cast(User, request.user), is_muted=action == "mute")
        messages.success(
            request, "Muted: changes are listed, not announced." if action == "mute" else "Announced again."
        )
        if alert := row.alerts.filter(pk=whole_number(request.POST.get("alert", "")) or 0).first():
            return redirect(alert)
    elif action == "refresh":
        count = len(services.watch_refresh(watch=row))
        messages.success(request, f"Looked for results: {count} new alert{'' if count == 1 else 's'}.")
    elif action == "run":
        _run(request, row)
    elif action == "import":
        _import(request, row)
    elif action == "delete":
        require_change(request.user, row)
        services.watch_delete(watch=row)
        messages.success(request, f"Deleted {row.name}. Its runs remain.")
        return redirect("watches")
    else:
        raise Http404(f"unknown action {action}; use pause, resume, mute, unmute, refresh, run, import or delete")
    return redirect(row)


def _import(request: HttpRequest, row: Watch) -> None:
    file, slug = request.FILES.get("file"), request.POST.get("experiment", "")
    try:
        if slug:
            experiment = get_object_or_404(Experiment, slug=slug)
            outcome = services.experiment_import(watch=row, experiment=experiment)
            messages.success(request, f"Imported {outcome.rows} runs; {outcome.alerts} new alerts.")
            return
    except ValueError as problem:
        messages.error(request, f"Not imported: {problem}.")
        return
    if file is None or (file.size or 0) > MAX_HISTORY_BYTES:
        messages.error(request, "Not imported: select a file of at most 8 MiB.")
        return
    try:
        outcome = services.history_import(watch=row, text=file.read().decode("utf-8", "replace"))
    except ValueError as problem:
        messages.error(request, f"Not imported: {problem}.")
        return
    problems = f" Not read: {'; '.join(outcome.problems[:3])}." if outcome.problems else ""
    messages.success(request, f"Imported {outcome.rows} results; {outcome.alerts} new alerts.{problems}")


def _run(request: HttpRequest, row: Watch) -> None:
    try:
        order = services.watch_run(watch=row, user=cast(User, request.user))
    except ValueError as problem:
        messages.error(request, f"Not started: {problem}.")
        return
    commit = f" at commit {order.commit[:10]}" if order.commit else ""
    messages.success(request, f"Ordered {order.count} run{'' if order.count == 1 else 's'} of each point{commit}.")


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def bisect(request: HttpRequest, pk: int, number: int, action: str) -> HttpResponse:
    """Start, pause or resume the bisection of an alert."""
    row = find_alert(pk, number)
    try:
        if action == "start":
            good, bad = (request.POST.get(name, "").strip() for name in ("good", "bad"))
            bisecting.bisect_start(alert=row, user=cast(User, request.user), good=good, bad=bad)
            messages.success(request, "Bisection started. Its runs appear among the orders of the watch.")
        elif action in ("pause", "resume"):
            state = Bisect.State.PAUSED if action == "pause" else Bisect.State.RUNNING
            for search in row.bisects.all():
                bisecting.bisect_switch(bisect=search, state=state)
            messages.success(request, "Paused." if action == "pause" else "Resumed.")
        else:
            raise Http404(f"unknown action {action}; use start, pause or resume")
    except ValueError as problem:
        messages.error(request, f"Not started: {problem}.")
    return redirect(row)


def _bisect_context(row: Alert) -> dict[str, Any]:
    search = row.bisects.order_by("-pk").first()
    context: dict[str, Any] = {"bisect": search}
    try:
        if search is not None:
            context["bisect_measure"] = measure_of(search.measure)
            context["steps"] = bisecting.steps_of(search)
        else:
            context["cost"] = bisecting.bisect_cost(row)
    except ValueError as problem:
        context["why_not"] = str(problem)
    return context


@require_GET
def alert(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    context = _alert_context(find_alert(pk, number)) | {"listed": watch_list()}
    return render(request, "watch/alert.html", context)


def _alert_context(row: Alert) -> dict[str, Any]:
    parts, between = selectors.parts_of(row), selectors.between(row)
    return {
        "section": "watch",
        "alert": row,
        "text": sentence_of(row),
        "drawn": drawn(row, parts, between),
        "parts": parts,
        "others": other_measures(row),
        "between": between,
        "changes": waterfall_changes(row),
        "nodes": _nodes(row),
        "followers": row.followers.select_related("watch"),
        **_bisect_context(row),
    }


def _nodes(row: Alert) -> list[Node]:
    """Return the nodes that an alert is about: that of a health watch, both ends of a link, or the one it names."""
    own = [node for node in (row.watch.node, row.watch.peer) if node is not None]
    # Other hardware under the name of a node has a number.
    return own or list(Node.objects.filter(name=row.node.partition(" (hardware ")[0]))


@require_POST
@permission_required("watch.change_alert", raise_exception=True)
def answer(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    row = find_alert(pk, number)
    try:
        services.alert_answer(
            alert=row,
            answer=request.POST.get("answer", ""),
            user=cast(User, request.user),
            reason=request.POST.get("reason", ""),
        )
    except ValueError as problem:
        messages.error(request, f"Not changed: {problem}.")
    else:
        messages.success(request, f"The alert is {row.state}.")
    return redirect((request.POST.get("next") == "week" and "watches") or row)


@require_GET
def figure_json(_request: HttpRequest, pk: int, number: int) -> HttpResponse:
    return json_response(selectors.series_figure(_series(pk, number)))


@require_GET
def figure_csv(_request: HttpRequest, pk: int, number: int) -> HttpResponse:
    return csv_response(selectors.series_figure(_series(pk, number)).table, f"watch-{pk}-{number}.csv")


@require_GET
def feed_json(request: HttpRequest) -> HttpResponse:
    """Return the newest alerts as JSON Feed 1.1."""
    items = [
        {
            "id": _address(request, row),
            "url": _address(request, row),
            "title": sentence_of(row),
            "content_text": f"{sentence_of(row)} State: {row.state}. {row.reason}".strip(),
            "date_published": row.created_at.isoformat(),
            "tags": [row.state, "worse" if row.is_worse else "better"],
        }
        for row in _newest()
    ]
    feed = {
        "version": "https://jsonfeed.org/version/1.1",
        "title": "parlab: changes in watches",
        "home_page_url": request.build_absolute_uri("/watch/"),
        "feed_url": request.build_absolute_uri(),
        "items": items,
    }
    return HttpResponse(json.dumps(feed), content_type="application/feed+json; charset=utf-8")


@require_GET
def feed_atom(request: HttpRequest) -> HttpResponse:
    """Return the newest alerts as an Atom feed."""
    rows = _newest()
    updated = max([row.changed_at or row.created_at for row in rows], default=timezone.now())
    own, home = request.build_absolute_uri("/watch/feed.atom"), request.build_absolute_uri("/watch/")
    entries = "".join(
        f"<entry><id>{escape(_address(request, row))}</id><title>{escape(sentence_of(row))}</title>"
        f"<link href={quoteattr(_address(request, row))}/>"
        f"<updated>{(row.changed_at or row.created_at).isoformat()}</updated>"
        f"<published>{row.created_at.isoformat()}</published>"
        f"<category term={quoteattr(row.state)}/><summary>{escape(f'{row.state}. {row.reason}')}</summary></entry>"
        for row in rows
    )
    text = (
        '<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom">'
        f"<id>{escape(home)}</id><title>parlab: changes in watches</title><updated>{updated.isoformat()}</updated>"
        f'<author><name>parlab</name></author><link rel="self" href={quoteattr(own)}/>'
        f"<link href={quoteattr(home)}/>{entries}</feed>"
    )
    return HttpResponse(text, content_type="application/atom+xml; charset=utf-8")


def _newest() -> list[Alert]:
    related = ("watch__config", "first_bad", "last_good")
    return list(Alert.objects.select_related(*related).order_by("-created_at", "-pk")[:MAX_FEED])


def _address(request: HttpRequest, row: Alert) -> str:
    return request.build_absolute_uri(row.get_absolute_url())


def _find(pk: int) -> Watch:
    return get_object_or_404(Watch.objects.select_related("config__experiment", "created_by"), pk=pk)


def find_alert(pk: int, number: int) -> Alert:
    related = (
        "watch__config__experiment", "first_bad__run__experiment", "last_good__run__experiment", "changed_by",
        "leader__watch", "watch__node",
    )  # fmt: skip
    return get_object_or_404(Alert.objects.select_related(*related), pk=number, watch=pk)


def _series(pk: int, number: int) -> Series:
    return get_object_or_404(Series.objects.select_related("watch"), pk=number, watch=pk)
