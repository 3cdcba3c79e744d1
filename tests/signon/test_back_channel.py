"""Logouts that the issuer sends by itself: they end the sessions that they name, and forged ones end none."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.services.access import request_limits

from .issuers import CLIENT, LyingIssuer, begin, is_in

EVENT = "http://schemas.openid.net/event/backchannel-logout"
_OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(autouse=True)
def limits() -> None:
    request_limits.bad_tokens.clear()


def logged_in(liar: LyingIssuer, sub: str, sid: str | None = None) -> Client:
    """Log in as a person, in a session at the issuer."""
    more = {} if sid is None else {"sid": sid}
    who = {"sub": sub, "preferred_username": sub}
    liar.userinfo = {"sub": sub}
    liar.sign = lambda claims: liar.signed({**claims, **who, **more})
    client = Client()
    assert client.get(liar.authorize(begin(client))).status_code == 302
    assert is_in(client)
    return client


def logout_claims(liar: LyingIssuer, **changes: Any) -> dict[str, Any]:
    now = int(time.time())
    claims = {"iss": liar.url, "aud": CLIENT, "iat": now, "exp": now + 120, "jti": "j", "events": {EVENT: {}}}
    return {name: value for name, value in {**claims, **changes}.items() if value is not None}


def send(token: str | None) -> Any:
    return Client(enforce_csrf_checks=True).post("/login/sso/ended/", {} if token is None else {"logout_token": token})


def test_all_sessions_of_a_person_end_and_no_others(liar: LyingIssuer, user: User) -> None:
    first, second, other = logged_in(liar, "ada2"), logged_in(liar, "ada2"), logged_in(liar, "grace")
    local = Client()
    local.force_login(user)
    answer = send(liar.signed(logout_claims(liar, sub="ada2")))
    assert (answer.status_code, "no-store" in answer["Cache-Control"]) == (200, True)
    assert [is_in(client) for client in (first, second, other, local)] == [False, False, True, True]
    again = logged_in(liar, "ada2")
    assert is_in(again)


def test_a_session_of_the_issuer_ends_alone(liar: LyingIssuer) -> None:
    here, elsewhere = logged_in(liar, "ada2", "s1"), logged_in(liar, "ada2", "s2")
    assert send(liar.signed(logout_claims(liar, sid="s1"))).status_code == 200
    assert [is_in(here), is_in(elsewhere)] == [False, True]
    assert send(liar.signed(logout_claims(liar, sub="grace", sid="s2"))).status_code == 200
    assert is_in(elsewhere), "both must fit"


Lie = Callable[[LyingIssuer], "str | None"]


def claiming(**changes: Any) -> Lie:
    return lambda liar: liar.signed(logout_claims(liar, **{"sub": "ada2", **changes}))


def at(**seconds: int) -> Lie:
    return claiming(**{name: int(time.time()) + value for name, value in seconds.items()})


LIES: dict[str, Lie] = {
    "another issuer": claiming(iss="https://evil.example"),
    "another audience": claiming(aud="other"),
    "expired": at(exp=-3_600),
    "issued in the future": at(iat=3_600),
    "issued long ago": at(iat=-3_600),
    "with a nonce": claiming(nonce="n"),
    "another event": claiming(events={"http://schemas.openid.net/event/other": {}}),
    "events that are no object": claiming(events=[EVENT]),
    "nobody": claiming(sub=None),
    "a subject that is no text": claiming(sub=None, sid=7),
    **{f"no {name}": claiming(**{name: None}) for name in ("iss", "aud", "exp", "iat", "jti", "events")},
    "signed by another key": lambda liar: liar.signed(logout_claims(liar, sub="ada2"), key=_OTHER),
    "no signature": lambda liar: jwt.encode(logout_claims(liar, sub="ada2"), "", "none", {"kid": liar.kid}),
    "the ID token of the login": lambda liar: liar.given,
    "no JWT": lambda liar: "parlab",
    "none at all": lambda liar: None,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_token_ends_nothing(liar: LyingIssuer, lie: str) -> None:
    client = logged_in(liar, "ada2")
    answer = send(LIES[lie](liar))
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    assert is_in(client)


def test_wrong_tokens_from_an_address_are_limited(liar: LyingIssuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "BAD_TOKENS", 2)
    assert [send("parlab").status_code for _ in range(3)] == [400, 400, 429]


def test_without_an_issuer_nothing_can_be_ended(db: None) -> None:
    assert send("parlab").status_code == 404
