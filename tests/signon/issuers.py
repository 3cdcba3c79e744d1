"""Issuers of OpenID Connect on loopback, and a browser that goes back and forth between one and this server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client
from jwt.algorithms import RSAAlgorithm

from parlab.embedded import free_port
from tests.signon.install import DIRECTORY, is_installed

CLIENT = "parlab"
PROVIDERS = ["of PyPI", *["certified"] * is_installed()]
"""The real providers that are installed here."""


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_browser = urllib.request.build_opener(_Stay)


def request(url: str, data: dict[str, str] | None = None, method: str | None = None, body: Any = None) -> Any:
    """Send a request without following redirects; return the response, whatever its status."""
    content = json.dumps(body).encode() if body is not None else urlencode(data).encode() if data else None
    sent = urllib.request.Request(url, data=content, method=method)
    if body is not None:
        sent.add_header("Content-Type", "application/json")
    try:
        return _browser.open(sent, timeout=10)
    except urllib.error.HTTPError as error:
        return error


@contextmanager
def real_issuer() -> Iterator[str]:
    """Run `oidc-provider-mock` as a process; yields its address."""
    port = free_port()
    command = [sys.executable, "-m", "oidc_provider_mock", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield _answering(f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def certified_issuer() -> Iterator[str]:
    """Run the certified provider of npm as a process; yields its address."""
    port = free_port()
    command = ["node", "--input-type=module", "-", str(port), "http://testserver/login/sso/callback/"]
    script = (Path(__file__).parent / "certified.mjs").open("rb")
    with (
        script,
        subprocess.Popen(
            command, cwd=DIRECTORY, stdin=script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
    ):
        try:
            yield _answering(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()


def _answering(url: str, process: subprocess.Popen[bytes]) -> str:
    """Return the address of an issuer once it answers."""
    for _ in range(200):
        try:
            request(f"{url}/.well-known/openid-configuration")
            return url
        except urllib.error.URLError:
            assert process.poll() is None, "the provider did not start"
            time.sleep(0.05)
    raise AssertionError("the provider does not answer")


_ACTION, _PROMPT = re.compile(r'action="([^"]+)"'), re.compile(r'name="prompt" value="(\w+)"')


def agree_to_all(address: str, sub: str) -> str:
    """Log in and consent at the certified issuer; return the path to which it leads back."""
    browser = urllib.request.build_opener(_Stay, urllib.request.HTTPCookieProcessor())
    data: bytes | None = None
    for _ in range(12):
        try:
            page = browser.open(address, data, timeout=10).read().decode()
        except urllib.error.HTTPError as answer:
            address, data = urljoin(address, answer.headers["Location"]), None
            if (place := urlsplit(address)).netloc == "testserver":
                return f"{place.path}?{place.query}"
            continue
        action, prompt = _ACTION.search(page), _PROMPT.search(page)
        assert action, page
        assert prompt, page
        address = urljoin(address, action[1])
        data = urlencode({"prompt": prompt[1], "login": sub, "password": "x"}).encode()
    raise AssertionError("the provider asks for ever")


def person(issuer: str, sub: str, **claims: Any) -> None:
    """Tell the real issuer what to say of a person."""
    assert request(f"{issuer}/users/{sub}", method="PUT", body=claims).status == 204


def begin(client: Client, query: str = "") -> str:
    """Begin a login; return the address of the issuer to which it leads."""
    answer = client.get(f"/login/sso/{query}")
    assert answer.status_code == 302, answer.content
    return str(answer["Location"])


def agree(address: str, sub: str) -> str:
    """Log in at the real issuer; return the path to which it leads back."""
    place = urlsplit(request(address, {"sub": sub}).headers["Location"])
    assert place.netloc == "testserver"
    return f"{place.path}?{place.query}"


def sign_on(client: Client, sub: str, query: str = "") -> Any:
    """Log in with the real issuer; return the last response of this server."""
    return client.get(agree(begin(client, query), sub))


def is_in(client: Client) -> bool:
    """Return whether a browser has a session."""
    return bool(client.get("/account/").status_code == 200)


class LyingIssuer:
    """An issuer that gives out whatever tokens a test wants; it checks code and PKCE, as a good one does."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.kid, self.url = "k1", ""
        self.metadata: dict[str, Any] = {}
        """What the discovery document states instead."""
        self.userinfo: dict[str, Any] = {}
        """What userinfo states instead."""
        self.sign: Callable[[dict[str, Any]], str | None] = self.signed
        """Makes the ID token of claims; None sends none."""
        self.given = ""
        """The last ID token."""
        self.codes: dict[str, dict[str, str]] = {}

    def signed(self, claims: dict[str, Any], **more: Any) -> str:
        return jwt.encode(
            claims, more.get("key", self.key), more.get("alg", "RS256"), {"kid": more.get("kid", self.kid)}
        )

    def claims(self, nonce: str) -> dict[str, Any]:
        now = int(time.time())
        who = {"sub": "ada", "preferred_username": "ada", "groups": ["research"]}
        return {**who, "iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 60, "nonce": nonce}

    def authorize(self, address: str) -> str:
        """Agree to a login, as its page would; return the path to which it leads back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = hashlib.sha256(address.encode()).hexdigest()
        self.codes[code] = query
        return f"{urlsplit(query['redirect_uri']).path}?{urlencode({'code': code, 'state': query['state']})}"

    def token(self, form: dict[str, str]) -> dict[str, Any] | None:
        asked = self.codes.pop(form.get("code", ""), None)
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if asked is None or base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != asked["code_challenge"]:
            return None
        token = self.sign(self.claims(asked["nonce"]))
        self.given = token or ""
        return {"access_token": "a", "token_type": "Bearer", **({"id_token": token} if token is not None else {})}

    def answer(self, path: str, form: dict[str, str]) -> Any:
        if path == "/.well-known/openid-configuration":
            places = {name: f"{self.url}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
            return {"issuer": self.url, "userinfo_endpoint": f"{self.url}/userinfo", **places, **self.metadata}
        if path == "/jwks_uri":
            jwk = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
            return {"keys": [{**jwk, "kid": self.kid, "alg": "RS256", "use": "sig"}]}
        if path == "/userinfo":
            return {"sub": "ada", "groups": ["research"], **self.userinfo}
        return self.token(form) if path == "/token_endpoint" else None

    @contextmanager
    def running(self) -> Iterator[LyingIssuer]:
        lies = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                form = {name: values[0] for name, values in parse_qs(self.rfile.read(size).decode()).items()}
                content = lies.answer(self.path, form)
                self.send_response(400 if content is None else 200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(content or {"error": "invalid_grant"}).encode())

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            yield self
            server.shutdown()
