"""Plotly is requested with the header of a page, before the browser has read the page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.templatetags.static import static

PLOTLY = "vendor/plotly/plotly-basic.min.js"


def with_figures(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Let the browser load Plotly while it still reads the page that the view returns."""

    @wraps(view)
    def page(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
        response = view(request, *arguments, **named)
        if response.status_code == 200:
            response["Link"] = f"<{static(PLOTLY)}>; rel=preload; as=script; fetchpriority=high"
        return response

    return page
