"""`parlab login` without a token: the user confirms a code in the browser. `manage.py token` prints one."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from parlab.lab.models import ApiToken, DeviceLogin
from parlab.lab.services.access.tokens import token_find
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def start(environ: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start `parlab login` without a terminal and without input, so that it asks for a confirmation."""
    command = [sys.executable, "-m", "parlab", "login", *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environ, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("is_confirmed", [True, False], ids=["confirmed", "denied"])
def test_the_user_confirms_in_the_browser(
    offline: dict[str, str], client_home: Path, live_server: LiveServer, admin: User, is_confirmed: bool
) -> None:
    process = start(offline, "--server", live_server.url, "--scope", "read")
    try:
        wait_for(DeviceLogin.objects.exists, "a login that waits")
        login = DeviceLogin.objects.get()
        browser = Client()
        browser.force_login(admin)
        browser.post("/device/", {"code": login.user_code, "answer": "confirm" if is_confirmed else "deny"})
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.communicate()
    assert f"{live_server.url}/device/?code={login.user_code}" in output
    stored = client_home / "login.json"
    if not is_confirmed:
        assert (process.returncode, stored.exists()) == (1, False)
        assert "denied in the browser" in errors
        return
    assert (process.returncode, errors) == (0, "")
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    content = json.loads(stored.read_text())
    assert content["url"] == live_server.url
    token = token_find(content["token"])
    assert token is not None
    assert (token.user, token.scope_names) == (admin, ["read"])


def test_a_token_of_the_command_line_has_the_chosen_scopes(user: User) -> None:
    output = StringIO()
    call_command("token", user.username, "--scope", "read", "--scope", "launch", "--days", "30", stdout=output)
    secret = output.getvalue().strip()
    assert re.fullmatch(r"parlab_[\w-]{43}", secret)
    token = token_find(secret)
    assert token is not None
    assert (token.user, token.scope_names, token.name[:15]) == (user, ["read", "launch"], "manage.py token")
    assert token.expires_at is not None


def test_a_token_is_refused_for_an_unknown_or_disabled_user(user: User) -> None:
    with pytest.raises(CommandError, match=rf"user 'nobody' is unknown; use one of .*{user.username}"):
        call_command("token", "nobody")
    user.is_active = False
    user.save()
    with pytest.raises(CommandError, match="is disabled"):
        call_command("token", user.username)
    assert not ApiToken.objects.exists()
