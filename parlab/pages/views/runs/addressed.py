"""The run and the attempt that an address names."""

from __future__ import annotations

from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404

from parlab.lab.models import Attempt, Run
from parlab.whole_numbers import whole_number


def find_run(slug: str, number: int) -> Run:
    runs = Run.objects.select_related("experiment", "config", "created_by", "source", "tracked").defer(
        "source__document"
    )
    return get_object_or_404(runs, experiment__slug=slug, number=number)


def find_attempt(request: HttpRequest, run: Run) -> Attempt | None:
    """Return the attempt of `?attempt=1`, else the current one; published runs have no attempts."""
    requested = request.GET.get("attempt", "")
    number = whole_number(requested, 9)
    number = run.attempt_number if number is None else number
    attempt = run.attempts.with_members().filter(number=number).first()
    if attempt is None and requested:
        raise Http404(f"run {run.number} has no attempt {requested}")
    return attempt
