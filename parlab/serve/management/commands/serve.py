"""`parlab serve`: a server on this machine until Ctrl-C, with all data in one directory."""

from __future__ import annotations

import ipaddress
import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from parlab.serve.accounts import first_user
from parlab.serve.stack import Stack

FIRST_USER = "admin"


class Command(BaseCommand):
    help = "Run a server on this machine (web server, workers, beat, Redis) until Ctrl-C."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")), help="first port to try")
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        redis_port = int(os.environ.get("REDIS_PORT", "16399"))
        parser.add_argument("--redis-port", type=int, default=redis_port, help="first port to try (embedded Redis)")
        parser.add_argument("--node", action="store_true", help="also run the daemon of a node on this machine")

    def handle(self, *args: Any, port: int, host: str, redis_port: int, node: bool, **options: Any) -> None:
        data: Path = settings.DATA_DIR
        _check_host(host)
        stack = Stack(data, self._say)
        # A module in the directory where this was started must not come before an installed one.
        os.chdir(data)
        if not settings.IS_INSTALLED:
            paths = [str(settings.BASE_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
            stack.environment["PYTHONPATH"] = os.pathsep.join(paths)
        with stack.running() as note:
            self._say(f"data directory {data}")
            stack.start_redis(redis_port)
            stack.prepare()
            login = _login(data / "admin_password")
            web_port = stack.port("web server", port, "PORT")
            self._say("starting")
            if node:
                stack.start_daemon(data / "runner")
            url = stack.start_server(host, web_port)
            stack.wait_until_ready(host, web_port)
            self._say(f"{url}  {login}")
            note(url)
            stack.watch()

    def _say(self, line: str) -> None:
        self.stdout.write(f"parlab: {line}")
        self.stdout.flush()


def _check_host(host: str) -> None:
    """Refuse to listen for others before the server is told by which names they call it."""
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and "ALLOWED_HOSTS" not in os.environ:
        raise CommandError(
            f"--host {host} lets other machines in, but ALLOWED_HOSTS is not set: set it to the names in the addresses"
            " that they use, like ALLOWED_HOSTS=parlab.example.org,127.0.0.1"
        )


def _login(password_file: Path) -> str:
    """Return user and password for the terminal; the password only while it is the one that was generated."""
    if not password_file.exists() and User.objects.filter(is_superuser=True).exists():
        return "log in with your account"
    user, password = first_user(FIRST_USER, password_file)
    if user.check_password(password):
        return f"{user.username}  {password}"
    password_file.unlink()  # replaced by a password of the user's own
    return f"{user.username}  (with the password that you have set)"
