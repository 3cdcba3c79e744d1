from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from parlab.lab.services.access.groups import groups_refresh

from .issuers import LyingIssuer, certified_issuer, real_issuer


@pytest.fixture(scope="session")
def real_address() -> Iterator[str]:
    with real_issuer() as url:
        yield url


@pytest.fixture(scope="session")
def certified_address() -> Iterator[str]:
    with certified_issuer() as url:
        yield url


@pytest.fixture
def trusted(settings: Any, db: None) -> Callable[..., str]:
    """Make an issuer that of this server: trusted(url, groups={...})."""

    def trust(url: str, **groups: Any) -> str:
        groups_refresh()
        settings.OIDC_ISSUER = url
        settings.SIGNON_GROUPS = groups or {"research": "operator"}
        app = {
            "provider_id": "sso", "name": "the lab's login", "client_id": "parlab", "secret": "s",
            "settings": {"server_url": url, "oauth_pkce_enabled": True, "scope": ["openid", "profile", "email"]},
        }  # fmt: skip
        configured = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]
        settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {**configured, "APPS": [app]}}
        return url

    return trust


@pytest.fixture
def issuer(real_address: str, trusted: Callable[..., str]) -> str:
    return trusted(real_address)


@pytest.fixture
def liar(trusted: Callable[..., str]) -> Iterator[LyingIssuer]:
    with LyingIssuer().running() as lies:
        trusted(lies.url)
        yield lies
