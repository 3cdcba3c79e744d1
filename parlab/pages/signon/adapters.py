"""What allauth asks of this server: who may come in, what a login gives, and how secrets are kept."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

import qrcode
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from qrcode.image.svg import SvgPathFillImage

from parlab.lab.services import storable
from parlab.lab.services.access.sessions import ID_TOKEN
from parlab.lab.services.access.signon import given_by, roles_apply
from parlab.pages.requests.audit import login_record

from .refusals import signon_refused

_SILENT = ("account/messages/logged_in.txt", "account/messages/logged_out.txt")


class Accounts(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """Accounts are made by administrators and by single sign-on; every login is in the audit log."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Failures are counted by the form, in the database."""

    def post_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse:
        login_record(request, user)
        login = (kwargs.get("signal_kwargs") or {}).get("sociallogin")
        if login is not None:
            request.session[ID_TOKEN] = getattr(login, "id_token", "")
        answer: HttpResponse = super().post_login(request, user, **kwargs)
        return answer

    def add_message(
        self, request: HttpRequest, level: int, message_template: Any = None, *rest: Any, **more: Any
    ) -> None:
        if message_template not in _SILENT:
            super().add_message(request, level, message_template, *rest, **more)


class SignOns(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """People who come by single sign-on: whom their groups admit, with the roles that these give."""

    def list_apps(self, request: HttpRequest, provider: Any = None, client_id: Any = None) -> list[Any]:
        """Return the issuer of the settings; rows of the database name none."""
        from allauth.socialaccount.adapter import _build_apps_from_settings

        apps = _build_apps_from_settings(provider=provider, client_id=client_id)
        return [app for rows in apps.values() for app in rows]

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True

    def is_auto_signup_allowed(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True

    def get_connect_redirect_url(self, request: HttpRequest, socialaccount: Any) -> str:
        return reverse("account")

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Refuse whom no group admits; give an account what its groups give, and take the rest."""
        groups = sociallogin.account.extra_data["groups"]
        is_known = sociallogin.is_existing
        given = roles_apply(user=sociallogin.user, groups=groups) if is_known else given_by(groups)
        if not given.is_admitted:
            raise ImmediateHttpResponse(signon_refused(request, "None of your groups may use this server."))
        if is_known and not sociallogin.user.is_active:
            raise ImmediateHttpResponse(signon_refused(request, "Your account here is disabled."))

    def populate_user(self, request: HttpRequest, sociallogin: Any, data: dict[str, Any]) -> Any:
        user = super().populate_user(request, sociallogin, data)
        claims = sociallogin.account.extra_data
        if claims.get("email") and claims.get("email_verified") is not False:
            user.email = storable.text(str(claims["email"]))[:254]
        return user

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> Any:
        user = super().save_user(request, sociallogin, form)
        roles_apply(user=user, groups=sociallogin.account.extra_data["groups"])
        return user

    def on_authentication_error(self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None,
                                extra_context: Any = None) -> None:  # fmt: skip
        reason = str(exception or "the answer of the issuer belongs to no login that was begun here")
        raise ImmediateHttpResponse(signon_refused(request, "Log in again.", reason=reason))


class SecondFactors(DefaultMFAAdapter):  # type: ignore[misc]  # allauth has no types
    """Secrets of second factors are encrypted with a key derived from `secret_key`."""

    def build_totp_svg(self, url: str) -> str:
        """Draw the code on white: on the ground of the dark theme no camera would see it."""
        drawing: bytes = qrcode.make(url, image_factory=SvgPathFillImage).to_string()
        return drawing.decode()

    def encrypt(self, text: str) -> str:
        return _fernet().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        try:
            return _fernet().decrypt(encrypted_text.encode()).decode()
        except InvalidToken:
            return ""  # `secret_key` was replaced: an administrator removes the second factor


def _fernet() -> Fernet:
    key = sha256(b"parlab.second-factors\0" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(key))
