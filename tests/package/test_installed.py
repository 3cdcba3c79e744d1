"""The wheel, installed with pip into an empty environment outside of the checkout: `parlab serve` is a whole server."""

from __future__ import annotations

import http.cookiejar
import json
import re
import select
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from parlab.client.version import VERSION
from parlab.embedded import free_port
from tests.package.conftest import ROOT
from tests.patience import PATIENCE_S, TRAINING_S

pytestmark = pytest.mark.slow
LOG = ROOT / "tests" / "formats" / "megatron" / "core_timers.log"


class Installation(NamedTuple):
    """An environment with the wheel, a home directory, and an empty directory to start in."""

    programs: Path
    home: Path
    empty: Path

    @property
    def data(self) -> Path:
        return self.home / ".local" / "share" / "parlab"

    @property
    def environ(self) -> dict[str, str]:
        """Nothing of this environment but a path for system programs."""
        ports = {"PORT": str(free_port(20_000)), "REDIS_PORT": str(free_port(28_000))}
        return {"HOME": str(self.home), "PATH": f"{self.programs}:/usr/bin:/bin", **ports}

    def parlab(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.programs / "parlab", *arguments],
            cwd=self.empty,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    root = tmp_path_factory.mktemp("installation")
    venv.create(root / "venv", with_pip=True)
    installed = Installation(root / "venv" / "bin", root / "home", root / "empty")
    installed.home.mkdir()
    installed.empty.mkdir()
    pip = [str(installed.programs / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, f"{wheel}[server]"], cwd=installed.empty, check=True, timeout=TRAINING_S)
    return installed


class Served(NamedTuple):
    """A running `parlab serve`, and what it has printed."""

    process: subprocess.Popen[str]
    url: str
    user: str
    password: str


@pytest.fixture(scope="module")
def served(installation: Installation) -> Iterator[Served]:
    process = subprocess.Popen(
        [installation.programs / "parlab", "serve"],
        cwd=installation.empty,
        env=installation.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield printed_login(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        left = processes_of(installation)
        for each in left:
            each.kill()
    assert (process.returncode, left) == (0, [])


def printed_login(process: subprocess.Popen[str]) -> Served:
    """Read what `parlab serve` prints, up to the address, the user and the password."""
    assert process.stdout is not None
    output, deadline = "", time.monotonic() + TRAINING_S
    while time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 0.5)[0]:
            line = process.stdout.readline()
            output += line
            if match := re.search(r"parlab: (http://\S+)  (\S+)  (\S+)", line):
                return Served(process, *match.groups())
    process.kill()
    raise AssertionError(f"parlab serve did not come up; its output:\n{output}")


def processes_of(installation: Installation) -> list[psutil.Process]:
    """Return the processes of the server that are still running."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PARLAB_DATA_DIR") == str(installation.data):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


class Browser:
    """Follows links and keeps cookies."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(self._cookies)
        )

    def get(self, path: str) -> str:
        with self._opener.open(self._url + path, timeout=PATIENCE_S) as response:
            return str(response.read().decode())

    def post(self, path: str, **fields: str) -> str:
        token = next(cookie.value for cookie in self._cookies if cookie.name == "csrftoken")
        body = urllib.parse.urlencode({**fields, "csrfmiddlewaretoken": token or ""}).encode()
        request = urllib.request.Request(self._url + path, body, {"Referer": self._url + path})
        with self._opener.open(request, timeout=PATIENCE_S) as response:
            return str(response.read().decode())


def test_no_training_framework_is_installed_with_the_server(installation: Installation) -> None:
    listed = subprocess.run(
        [installation.programs / "python", "-m", "pip", "list", "--format=json"], capture_output=True, check=True
    )
    names = {row["name"].lower() for row in json.loads(listed.stdout)}
    assert "django" in names
    assert not names & {"torch", "deepspeed", "transformers", "accelerate"}


def test_a_user_logs_in_and_opens_an_experiment_and_a_figure(installation: Installation, served: Served) -> None:
    browser = Browser(served.url)
    login = browser.get("/login/")
    style = re.search(r'href="(/static/css/site[^"]*\.css)"', login)
    assert style, login
    assert ".stack" in browser.get(style[1])
    assert "Invalid username" not in browser.post("/login/", username=served.user, password=served.password)
    assert "Account" in browser.get("/account/")

    made = installation.parlab("manage", "token", served.user)
    assert made.returncode == 0, made.stderr
    imported = installation.parlab("--url", served.url, "login", "--token", made.stdout.strip())
    assert imported.returncode == 0, imported.stderr
    imported = installation.parlab("--url", served.url, "import", "--json", str(LOG))
    assert imported.returncode == 0, imported.stderr
    experiments = json.loads(installation.parlab("--url", served.url, "ls", "--json").stdout)
    [slug] = [experiment["slug"] for experiment in experiments]
    assert "core_timers" in browser.get(f"/experiments/{slug}/")
    figure = json.loads(browser.get(f"/experiments/{slug}/figures/throughput.json"))
    assert figure["figure"]["data"], figure["empty"]
    assert "tolerance" in browser.get("/findings/rules/")


def test_all_data_is_in_the_directory_of_the_user(installation: Installation, served: Served) -> None:
    assert served.process.poll() is None
    assert (installation.data / "parlab.sqlite3").exists()
    assert (installation.data / "static" / "staticfiles.json").exists()
    assert installation.data.stat().st_mode & 0o077 == 0
    assert list(installation.empty.iterdir()) == []
    [site] = installation.programs.parent.glob("lib/python3*/site-packages")
    assert not (site / "data").exists()


def test_a_second_server_with_the_same_data_is_refused(installation: Installation, served: Served) -> None:
    second = installation.parlab("serve")
    assert second.returncode == 1
    assert f"already running with the data in {installation.data}: {served.url}" in second.stderr


def test_a_node_needs_its_own_packages_and_the_message_names_them(installation: Installation, served: Served) -> None:
    refused = installation.parlab("node", "--server", served.url)
    assert refused.returncode == 1
    assert "pip install 'parlab[node]'" in refused.stderr


def test_the_command_is_also_a_module(installation: Installation) -> None:
    answer = subprocess.run(
        [installation.programs / "python", "-m", "parlab", "--version"],
        cwd=installation.empty,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout == f"parlab {VERSION}\n"


def test_a_wheel_of_the_source_distribution_has_the_same_files(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=PATIENCE_S)
    [again] = tmp_path.glob("*.whl")
    names = [
        subprocess.run(
            [sys.executable, "-m", "zipfile", "-l", str(path)], capture_output=True, text=True, check=True
        ).stdout.split()
        for path in (wheel, again)
    ]
    assert [name for name in names[0] if "/" in name] == [name for name in names[1] if "/" in name]
