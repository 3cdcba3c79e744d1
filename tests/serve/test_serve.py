"""`parlab serve`: first account, address, data directory, and what it says where it cannot start."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError

from parlab import embedded, settings
from parlab.client.command import parts
from parlab.client.settings import server_data_dir
from parlab.serve.management.commands.serve import FIRST_USER, _check_host, _login


def test_the_first_start_creates_an_administrator_and_later_ones_print_the_same_password(
    db: None, tmp_path: Path
) -> None:
    file = tmp_path / "admin_password"
    name, password = _login(file).split("  ")
    user = User.objects.get()
    assert (user.username, name, user.is_superuser) == (FIRST_USER, FIRST_USER, True)
    assert user.check_password(password)
    assert file.stat().st_mode & 0o077 == 0
    assert _login(file) == f"{FIRST_USER}  {password}"


def test_a_password_of_the_users_own_is_neither_replaced_nor_printed(db: None, tmp_path: Path) -> None:
    file = tmp_path / "admin_password"
    _login(file)
    user = User.objects.get()
    user.set_password("correct horse battery")
    user.save()
    for text in (f"{FIRST_USER}  (with the password that you have set)", "log in with your account"):
        assert _login(file) == text
        assert not file.exists()
    user.refresh_from_db()
    assert user.check_password("correct horse battery")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_it_listens_on_this_machine(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALLOWED_HOSTS", raising=False)
    _check_host(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "parlab.example.org"])
def test_it_listens_for_others_once_it_knows_its_names(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALLOWED_HOSTS", raising=False)
    with pytest.raises(CommandError, match="ALLOWED_HOSTS is not set: set it to the names"):
        _check_host(host)
    monkeypatch.setenv("ALLOWED_HOSTS", "parlab.example.org")
    _check_host(host)


@pytest.mark.parametrize(
    ("variables", "directory"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.local/share/parlab"),
        ({"HOME": "/home/ada", "XDG_DATA_HOME": "/big"}, "/big/parlab"),
        ({"HOME": "/home/ada", "XDG_DATA_HOME": "relative"}, "/home/ada/.local/share/parlab"),
        ({"HOME": "/home/ada", "PARLAB_DATA_DIR": "/big/here"}, "/big/here"),
    ],
)
def test_the_data_is_in_the_users_directory(
    variables: dict[str, str], directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "PARLAB_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert server_data_dir() == Path(directory)


def test_an_installation_never_keeps_data_beside_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.default_data_dir() == settings.BASE_DIR / "data"  # a checkout
    monkeypatch.setattr(settings, "IS_INSTALLED", True)
    monkeypatch.delenv("PARLAB_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert settings.default_data_dir() == Path("/home/ada/.local/share/parlab")


def test_without_a_redis_it_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(OSError, match=r"no redis-server: install the package redis-server .* or set REDIS_URL"):
        embedded.redis_command(0, tmp_path)


def test_a_redis_for_another_machine_is_recognised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho 'version GLIBC_2.99 not found' >&2; exit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    with pytest.raises(OSError, match=r"does not start on this machine \(version GLIBC_2.99 not found\): install"):
        embedded.redis_command(0, tmp_path)


def test_an_unsupported_python_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "NEWEST", (3, 10))
    with pytest.raises(
        ValueError, match=r"requires Python 3.11 to 3.13, and this is 3.*pip install 'parlab\[server\]'"
    ):
        parts._imported("parlab.manage", "serve", "server", parts.SERVER)


def test_an_environment_with_a_django_for_other_work_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "celery" else find_spec(name))
    with pytest.raises(ImportError, match=r"not installed \(celery\): run pip install 'parlab\[server\]'"):
        parts._imported("parlab.manage", "serve", "server", parts.SERVER)


@pytest.mark.parametrize(("command", "extra"), [("serve", "server"), ("node", "node")])
def test_without_its_packages_a_command_names_the_extra(command: str, extra: str, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(settings.BASE_DIR), "HOME": str(tmp_path)}
    options = ["--server", "http://127.0.0.1:9"] if command == "node" else []
    done = subprocess.run(
        # Without site-packages.
        [sys.executable, "-S", "-m", "parlab", command, *options],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"parlab {command} requires packages that are not installed" in done.stderr
    assert f"pip install 'parlab[{extra}]'" in done.stderr
    assert not list(tmp_path.iterdir())
