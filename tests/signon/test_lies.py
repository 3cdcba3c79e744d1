"""What an issuer, or somebody in its place, may send: nothing of it lets anybody in."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.contrib.auth.models import User
from django.test import Client

from .issuers import CLIENT, LyingIssuer, begin, is_in

Claims = dict[str, Any]
Lie = Callable[[LyingIssuer, Claims], "str | None"]
_OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def claiming(**changes: Any) -> Lie:
    return lambda liar, claims: liar.signed({**claims, **{name: _now(value) for name, value in changes.items()}})


def without(name: str) -> Lie:
    return lambda liar, claims: liar.signed({key: value for key, value in claims.items() if key != name})


def _now(value: Any) -> Any:
    return int(time.time()) + value if isinstance(value, int) else value


def _public(liar: LyingIssuer) -> bytes:
    return liar.key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _altered(token: str, part: int) -> str:
    parts = token.split(".")
    middle = len(parts[part]) // 2
    parts[part] = parts[part][:middle] + ("A" if parts[part][middle] != "A" else "B") + parts[part][middle + 1 :]
    return ".".join(parts)


LIES: dict[str, Lie] = {
    "another issuer": claiming(iss="https://evil.example"),
    "another audience": claiming(aud="other"),
    "audience with another authorised party": claiming(aud=[CLIENT, "other"], azp="other"),
    "several audiences without an authorised party": claiming(aud=[CLIENT, "other"]),
    "another authorised party": claiming(azp="other"),
    "another nonce": claiming(nonce="n"),
    "an empty nonce": claiming(nonce=""),
    "expired": claiming(exp=-3_600),
    "not yet valid": claiming(nbf=3_600),
    "issued in the future": claiming(iat=3_600),
    "nobody": claiming(sub=""),
    "a subject that is no text": claiming(sub=["ada"]),
    **{f"no {name}": without(name) for name in ("iss", "aud", "exp", "iat", "sub", "nonce")},
    "signed by another key": lambda liar, claims: liar.signed(claims, key=_OTHER),
    "a key that is not published": lambda liar, claims: liar.signed(claims, key=_OTHER, kid="k2"),
    "no signature": lambda liar, claims: jwt.encode(claims, "", "none", {"kid": liar.kid}),
    "signed by the public key as a secret": lambda liar, claims: liar.signed(claims, key=_public(liar), alg="HS256"),
    "signed by the secret of the client": lambda liar, claims: liar.signed(claims, key=b"s" * 32, alg="HS256"),
    "an altered header": lambda liar, claims: _altered(liar.signed(claims), 0),
    "altered claims": lambda liar, claims: _altered(liar.signed(claims), 1),
    "an altered signature": lambda liar, claims: _altered(liar.signed(claims), 2),
    "cut off": lambda liar, claims: liar.signed(claims)[:-40],
    "no JWT": lambda liar, claims: "parlab",
    "empty": lambda liar, claims: "",
    "none at all": lambda liar, claims: None,
}  # fmt: skip


def refused(client: Client, place: str) -> bool:
    """Return whether the way back from the issuer let nobody in, with a page that says so."""
    answer = client.get(place)
    assert answer.status_code == 403, answer.content
    assert "Not logged in" in answer.content.decode()
    return not is_in(client) and not User.objects.exists()


def test_an_honest_token_lets_in(liar: LyingIssuer) -> None:
    client = Client()
    assert client.get(liar.authorize(begin(client))).status_code == 302
    assert is_in(client)


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_id_token_lets_nobody_in(liar: LyingIssuer, lie: str) -> None:
    client = Client()
    liar.sign = lambda claims: LIES[lie](liar, claims)
    assert refused(client, liar.authorize(begin(client)))


def test_a_token_of_an_earlier_login_lets_nobody_in(liar: LyingIssuer) -> None:
    first = Client()
    first.get(liar.authorize(begin(first)))
    old = liar.given
    User.objects.all().delete()
    client = Client()
    liar.sign = lambda claims: old
    assert refused(client, liar.authorize(begin(client)))


def test_userinfo_about_another_person_lets_nobody_in(liar: LyingIssuer) -> None:
    client = Client()
    liar.userinfo = {"sub": "eve"}
    assert refused(client, liar.authorize(begin(client)))


def test_a_discovery_document_of_another_issuer_begins_no_login(liar: LyingIssuer) -> None:
    liar.metadata = {"issuer": "https://evil.example"}
    answer = Client().get("/login/sso/")
    assert answer.status_code == 403
    assert "Not logged in" in answer.content.decode()


def test_an_answer_that_names_another_issuer_lets_nobody_in(liar: LyingIssuer) -> None:
    client = Client()
    assert refused(client, f"{liar.authorize(begin(client))}&iss=https%3A%2F%2Fevil.example")


def test_a_code_without_the_verifier_of_its_login_lets_nobody_in(liar: LyingIssuer) -> None:
    victim, thief = Client(), Client()
    stolen = liar.authorize(begin(victim)).partition("code=")[2].partition("&")[0]
    own = liar.authorize(begin(thief))
    state = own.partition("state=")[2]
    assert refused(thief, f"/login/sso/callback/?code={stolen}&state={state}")


def test_an_issuer_that_does_not_answer_begins_no_login(trusted: Callable[..., str]) -> None:
    trusted("http://127.0.0.1:9")
    answer = Client().get("/login/sso/")
    assert (answer.status_code, "Not logged in" in answer.content.decode()) == (403, True)
