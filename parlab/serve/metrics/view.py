"""`GET /metrics`, and `GET /metrics?runs=1`: who may read them, and of which runs."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterator

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from parlab.lab.models import Project, Run
from parlab.lab.models.access.viewer import viewer_become, viewing
from parlab.lab.services.access.request_limits import TooManyRequests, bad_token_count
from parlab.lab.services.access.tokens import token_find
from parlab.serve.metrics.exposition import CONTENT_TYPE, Family, exposition
from parlab.serve.metrics.run_numbers import run_numbers
from parlab.serve.metrics.server_numbers import server_numbers

_SCHEME = re.compile(r"(?:Token|Bearer) +(\S{1,200})")
_TEXT = "text/plain; charset=utf-8"
_REMEDY = (
    "Metrics need a token: `Authorization: Bearer TOKEN` with PARLAB_METRICS_TOKEN of the server, or with a token of an"
    " account and scope read. PARLAB_METRICS_NETWORKS names addresses that need none.\n"
)


@login_not_required
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the metrics of the server; `?runs=1` adds those of the runs that the reader sees.

    Prometheus, which has a token of the server or an address, reads runs of the projects that every account sees.
    """
    is_prometheus = _is_prometheus(request)
    if not is_prometheus and (refusal := _refusal(request)):
        return refusal
    runs = Run.objects.all()
    if is_prometheus:
        with viewing(None):
            text = exposition(_families(request, Run.objects.filter(experiment__project__visibility=_INTERNAL)))
    else:
        text = exposition(_families(request, runs))
    return HttpResponse(text, content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})


_INTERNAL = Project.Visibility.INTERNAL


def _families(request: HttpRequest, runs: QuerySet[Run]) -> Iterator[Family]:
    yield from server_numbers()
    if request.GET.get("runs") == "1":
        yield from run_numbers(runs, settings.METRICS_RUNS)


def _is_prometheus(request: HttpRequest) -> bool:
    """Return whether the request comes from an address that may read, or with the token of the server."""
    address = str(request.META.get("REMOTE_ADDR", ""))
    if any(_is_in(address, network) for network in settings.METRICS_NETWORKS):
        return True
    secret = _secret(request).encode()
    return bool(settings.METRICS_TOKEN) and hmac.compare_digest(secret, settings.METRICS_TOKEN.encode())


def _is_in(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _secret(request: HttpRequest) -> str:
    match = _SCHEME.fullmatch(request.headers.get("Authorization", "").strip())
    return match[1] if match else ""


def _refusal(request: HttpRequest) -> HttpResponse | None:
    """Take the account of a session or token as the reader; return the answer to a request without one."""
    secret = _secret(request)
    if not secret:
        return None if request.user.is_authenticated else _refused(401, _REMEDY)
    token = token_find(secret)
    if token is None or not token.user.is_active:
        try:
            bad_token_count(str(request.META.get("REMOTE_ADDR", "")))
        except TooManyRequests as error:
            answer = _refused(429, f"{error}\n")
            answer["Retry-After"] = str(error.wait_s)
            return answer
        return _refused(401, _REMEDY)
    if not token.allows("read"):
        return _refused(403, f"Token {token.name} has no scope read: create another one on your account page.\n")
    viewer_become(token.user, token.project_id)
    return None


def _refused(status: int, text: str) -> HttpResponse:
    return HttpResponse(text, status=status, content_type=_TEXT)
