"""`parlab login`: a token that the user confirms in the browser, instead of copying one from a page."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Callable

from parlab.client.http import Connection, Refused, Unreachable

HTTP_NOT_FOUND = 404


class NotOffered(Exception):
    """The server is older than this way to log in."""


def confirmed_token(connection: Connection, scopes: Sequence[str], say: Callable[[str], object]) -> str:
    """Return a token that the user has confirmed in the browser. Raises Refused, Unreachable, NotOffered."""
    body = {"host": socket.gethostname()[:120] or "unnamed", **({"scopes": list(scopes)} if scopes else {})}
    try:
        login = connection.json("POST", "/api/login/device/", body)
    except Refused as error:
        if error.status == HTTP_NOT_FOUND:
            raise NotOffered from error
        raise
    say(
        f"Open {login['verification_uri_complete']}\n"
        f"and confirm the code {login['user_code']} there, within {login['expires_in'] // 60} minutes.\n"
    )
    deadline, wait_s = time.monotonic() + login["expires_in"], float(login["interval"])
    while True:
        time.sleep(wait_s)
        try:
            answer = connection.json("POST", "/api/login/device/token/", {"device_code": login["device_code"]})
        except Unreachable:  # restarted, or asked too early
            if time.monotonic() > deadline:
                raise
            continue
        if "secret" in answer:
            return str(answer["secret"])
        wait_s = float(answer["interval"])
