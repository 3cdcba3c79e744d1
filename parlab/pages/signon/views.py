"""The pages that begin and end sessions."""

from __future__ import annotations

from typing import Any

from allauth.account.views import LoginView
from allauth.socialaccount.models import SocialApp
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.services.access.passwords import is_signon_set
from parlab.lab.services.access.sessions import ID_TOKEN

from .provider import Issuer, end_session_url


class Login(LoginView):  # type: ignore[misc]  # allauth has no types
    """Offers single sign-on first, and the form for a password to whom may use one."""

    template_name = "pages/account/login.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        asked = "password" in self.request.GET or self.request.method == "POST"
        shown = {
            "issuer": settings.OIDC_NAME if settings.OIDC_ISSUER else "",
            "is_form_shown": asked or not is_signon_set(),
        }
        shown["next"] = self.request.POST.get("next") or self.request.GET.get("next", "")
        return {**super().get_context_data(**kwargs), **shown}


login = Login.as_view()


@require_GET
@login_not_required
@never_cache
def signon(request: HttpRequest) -> HttpResponse:
    """Send the browser to the issuer."""
    return _with_issuer(OAuth2LoginView, request)


@require_GET
@login_not_required
@never_cache
def signon_callback(request: HttpRequest) -> HttpResponse:
    """Take the answer of the issuer."""
    return _with_issuer(OAuth2CallbackView, request)


def _with_issuer(view: Any, request: HttpRequest) -> HttpResponse:
    try:
        answer: HttpResponse = view.adapter_view(Issuer(request, "sso"))(request)
    except SocialApp.DoesNotExist:
        raise Http404("single sign-on is not set up") from None
    return answer


@require_POST
@login_not_required
@never_cache
def log_out(request: HttpRequest) -> HttpResponse:
    """End the session here, and then that at the issuer."""
    id_token = request.session.get(ID_TOKEN)
    there = end_session_url(request, id_token) if id_token is not None and settings.OIDC_ISSUER else ""
    logout(request)
    if not there:
        return redirect("login")
    # A page that leads on: browsers apply `form-action` of our policy to redirects that follow a form.
    return render(request, "pages/account/logged_out.html", {"there": there, "issuer": settings.OIDC_NAME})
