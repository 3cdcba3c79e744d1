"""Earlier addresses of pages."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_GET

from parlab.lab.models import Experiment


@require_GET
def moved(request: HttpRequest, to: str, slug: str = "") -> HttpResponse:
    """Answer an earlier address with that of the page `to`, of an experiment if `slug` names one."""
    parts = [get_object_or_404(Experiment, slug=slug).slug] if slug else []
    query = request.GET.urlencode()
    address = reverse(to, args=parts) + (f"?{query}" if query else "")
    return redirect(address, permanent=True, preserve_request=True)
