"""Logouts that the issuer tells this server by itself (OpenID Connect Back-Channel Logout 1.0)."""

from __future__ import annotations

import logging
from typing import Any

import requests
from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from parlab.lab.services.access.request_limits import TooManyRequests, bad_token_count
from parlab.lab.services.access.sessions import signon_sessions_end

from .provider import Issuer

logger = logging.getLogger(__name__)


@csrf_exempt  # the issuer has no session here; its token is signed
@require_POST
@login_not_required
@never_cache
def signon_ended(request: HttpRequest) -> HttpResponse:
    """End the sessions of a person, or the one, that a logout token of the issuer names."""
    try:
        claims = _checked(request)
    except SocialApp.DoesNotExist:
        raise Http404("single sign-on is not set up") from None
    except (OAuth2Error, requests.RequestException) as error:
        return _refused(request, str(error))
    ended = signon_sessions_end(sub=claims.get("sub"), sid=claims.get("sid"))
    logger.info("the issuer has ended %d sessions of %s", ended, claims.get("sub") or "one login")
    return HttpResponse()


def _checked(request: HttpRequest) -> dict[str, Any]:
    issuer = Issuer(request, "sso")
    issuer.get_provider()
    token = request.POST.get("logout_token", "")
    if not token:
        raise OAuth2Error("logout_token is missing")
    return issuer.checked_logout(token)


def _refused(request: HttpRequest, reason: str) -> HttpResponse:
    address = str(request.META.get("REMOTE_ADDR", ""))
    logger.warning("logout token from %s refused: %s", address, reason[:400])
    try:
        bad_token_count(address)
    except TooManyRequests as error:
        return JsonResponse({"error": str(error)}, status=429, headers={"Retry-After": str(error.wait_s)})
    return JsonResponse({"error": "invalid_request", "error_description": reason[:400]}, status=400)
