"""The issuer of single sign-on: what is asked of it, and what its answers must hold.

allauth has the code flow with PKCE and a state that works once in one session. Added here: a nonce, the signature and
all claims of the ID token whatever road it came by, and `end_session`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import jwt
import requests
from allauth.account.utils import get_next_redirect_url
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.helpers import render_authentication_error
from allauth.socialaccount.providers.base import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.crypto import constant_time_compare, get_random_string, salted_hmac

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by key pairs; none by a shared secret, and none without one."""
CLAIMS = ["iss", "sub", "aud", "exp", "iat", "nonce"]
LOGOUT_CLAIMS = ["iss", "aud", "exp", "iat", "jti", "events"]
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
OLDEST_LOGOUT_S = 600
"""Age up to which a logout is believed, however long its token is valid."""
LEEWAY_S = 60
"""How far the clocks of issuer and server may differ."""
KEPT = ("name", "preferred_username", "email", "email_verified")
"""Claims that are kept of a person, besides `sub` and groups."""
_STATE_LENGTH = 32
_MAX_GROUPS = 2_000


def nonce_of(state_id: str) -> str:
    """Return the nonce of a login; its state is known to one session alone and works once, so it does, too."""
    return salted_hmac("parlab.signon.nonce", state_id, algorithm="sha256").hexdigest()


def groups_of(claims: Mapping[str, Any]) -> list[str]:
    value: Any = claims
    for part in settings.OIDC_GROUPS_CLAIM.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str):
        value = [value]
    return [group for group in value if isinstance(group, str)][:_MAX_GROUPS] if isinstance(value, list) else []


class Issuer(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]  # allauth has no types
    """Requests to the issuer, and the checks of its answers."""

    @property
    def openid_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().openid_config
        if str(config.get("issuer", "")).rstrip("/") != settings.OIDC_ISSUER.rstrip("/"):
            raise OAuth2Error(f"the issuer calls itself {str(config.get('issuer'))[:200]!r}, not PARLAB_OIDC_ISSUER")
        return config

    @property
    def basic_auth(self) -> bool:
        """Whether the secret is sent as a header; a public client has none."""
        return bool(self.get_provider().app.secret) and bool(super().basic_auth)

    def get_callback_url(self, request: HttpRequest, app: Any) -> str:
        return request.build_absolute_uri(reverse("signon-callback"))

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **kwargs: Any) -> Any:
        """Return the login of the person whom the issuer names. Raises OAuth2Error for whatever does not fit."""
        if request.GET.get("iss", self.openid_config["issuer"]) != self.openid_config["issuer"]:
            raise OAuth2Error("the answer comes from another issuer")
        id_token = str(kwargs["response"].get("id_token") or "")
        claims = self.checked_claims(id_token, nonce_of(request.GET["state"]))
        if "userinfo_endpoint" in self.openid_config:
            more = self._fetch_user_info(token.token)
            if not isinstance(more, dict) or more.get("sub") != claims["sub"]:
                raise OAuth2Error("userinfo is about another person than the ID token")
            claims = {**claims, **more}
        login = self.get_provider().sociallogin_from_response(request, claims)
        login.id_token = id_token
        return login

    def checked_claims(self, id_token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of an ID token. Raises OAuth2Error."""
        claims = self._claims(id_token, CLAIMS, "ID token")
        client_id = settings.OIDC_CLIENT_ID
        others = claims["aud"] if isinstance(claims["aud"], list) else []
        if (len(others) > 1 and claims.get("azp") != client_id) or claims.get("azp", client_id) != client_id:
            raise OAuth2Error("the ID token was issued to another client")
        if not isinstance(claims["sub"], str) or not claims["sub"]:
            raise OAuth2Error("the ID token names nobody")
        if not constant_time_compare(str(claims["nonce"]), nonce):
            raise OAuth2Error("the ID token belongs to another login")
        return claims

    def checked_logout(self, token: str) -> dict[str, Any]:
        """Return the claims of a logout token, which name a person (`sub`), a session (`sid`) or both.

        Raises OAuth2Error.
        """
        claims = self._claims(token, LOGOUT_CLAIMS, "logout token")
        if "nonce" in claims:
            raise OAuth2Error("the logout token has a nonce, as an ID token")
        if not isinstance(claims["events"], dict) or not isinstance(claims["events"].get(LOGOUT_EVENT), dict):
            raise OAuth2Error("the logout token is about another event")
        named = [claims[name] for name in ("sub", "sid") if name in claims]
        if not named or not all(isinstance(name, str) and name for name in named):
            raise OAuth2Error("the logout token names nobody")
        if claims["iat"] < time.time() - OLDEST_LOGOUT_S:
            raise OAuth2Error("the logout token is too old")
        return claims

    def _claims(self, token: str, required: list[str], what: str) -> dict[str, Any]:
        """Return the claims of a token of the issuer, once signature, issuer, audience and times are checked."""
        try:
            return self._decoded(token, required)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            raise OAuth2Error(f"the {what} is invalid: {error}") from error

    def _decoded(self, token: str, required: list[str]) -> dict[str, Any]:
        kid = jwt.get_unverified_header(token).get("kid")
        with get_adapter().get_requests_session() as session:
            answer = session.get(self.openid_config["jwks_uri"])
            answer.raise_for_status()
        keys = jwt.PyJWKSet.from_dict(answer.json()).keys
        named = [key for key in keys if kid is None or key.key_id == kid]
        if len(named) != 1:
            raise jwt.InvalidTokenError(f"{len(named)} keys of the issuer have its kid")
        return jwt.decode(
            token,
            key=named[0],
            algorithms=list(ALGORITHMS),
            issuer=self.openid_config["issuer"],
            audience=settings.OIDC_CLIENT_ID,
            leeway=LEEWAY_S,
            options={"require": required},
        )


class SingleSignOn(OpenIDConnectProvider):  # type: ignore[misc]  # allauth has no types
    """The issuer that the settings name."""

    oauth2_adapter_class = Issuer

    def get_login_url(self, request: HttpRequest, **kwargs: Any) -> str:
        url = reverse("signon")
        return f"{url}?{urlencode(kwargs)}" if kwargs else url

    def get_callback_url(self) -> str:
        return reverse("signon-callback")

    def get_redirect_from_request_kwargs(self, request: HttpRequest) -> dict[str, Any]:
        """Take from the address only where to go afterwards, and whether to connect an account."""
        is_connecting = request.GET.get("process") == AuthProcess.CONNECT and request.user.is_authenticated
        process = AuthProcess.CONNECT if is_connecting else AuthProcess.LOGIN
        return {"process": process, "next_url": get_next_redirect_url(request)}

    def redirect(self, request: HttpRequest, process: str, **kwargs: Any) -> HttpResponse:
        """Send the browser to the issuer."""
        state_id = get_random_string(_STATE_LENGTH)
        wishes = {**self.get_auth_params(), "nonce": nonce_of(state_id)}
        try:
            answer: HttpResponse = super().redirect(request, process, state_id=state_id, auth_params=wishes, **kwargs)
        except (OAuth2Error, requests.RequestException, KeyError) as error:
            return render_authentication_error(request, self, exception=error)  # type: ignore[no-any-return]
        return answer

    def extract_uid(self, data: Mapping[str, Any]) -> str:
        """Name a person by issuer and subject: another issuer may have the same subjects."""
        return sha256(f"{settings.OIDC_ISSUER.rstrip('/')}\0{data['sub']}".encode()).hexdigest()

    def extract_extra_data(self, data: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: data[name] for name in KEPT if isinstance(data.get(name), str | bool)}
        return {"sub": data["sub"], "groups": groups_of(data), **kept}

    def extract_common_fields(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Suggest a name of the account. The mail address finds no account, and is therefore no field of it here."""
        name = data.get("preferred_username") or str(data.get("email") or "").partition("@")[0] or data["sub"]
        return {"username": str(name)[:150], "name": str(data.get("name") or "")[:150]}

    def extract_email_addresses(self, data: Mapping[str, Any]) -> Collection[Any]:
        return []


def end_session_url(request: HttpRequest, id_token: str) -> str:
    """Return where the session at the issuer ends; empty if it has no such address or does not answer."""
    provider = get_adapter().get_provider(request, provider="sso")
    try:
        place = provider.get_oauth2_adapter(request).openid_config.get("end_session_endpoint", "")
    except (OAuth2Error, requests.RequestException):
        return ""
    query = {
        "client_id": settings.OIDC_CLIENT_ID,
        "post_logout_redirect_uri": request.build_absolute_uri(reverse("login")),
        **({"id_token_hint": id_token} if id_token else {}),
    }
    return f"{place}{'&' if '?' in place else '?'}{urlencode(query)}" if place else ""
