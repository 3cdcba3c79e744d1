"""The processes of `deploy/compose.yaml`, started without containers: PostgreSQL, Redis, setup, server, proxy."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from parlab.embedded import free_port, redis_command
from tests.deploy.certificates import self_signed
from tests.deploy.files import DEPLOY, ROOT, service
from tests.deploy.install import program
from tests.faults.postgres import Postgres
from tests.faults.stack import Service
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow
HOST = "localhost"
PASSWORD = "correct horse battery"
METRICS_TOKEN = "a-token-of-prometheus"
VARIABLES = {
    "PARLAB_HOST": HOST,
    "POSTGRES_PASSWORD": "unused",
    "REDIS_PASSWORD": "s3cret",
    "PARLAB_METRICS_TOKEN": METRICS_TOKEN,
}
SERVER = ("web", "worker", "pictures", "beat")


class Composed:
    """What compose would start, as processes of this machine; only ports, paths and addresses differ."""

    def __init__(self, directory: Path, database_url: str) -> None:
        self.directory = directory
        self.web_port, self._redis_port = free_port(), free_port()
        self.data = directory / "data"
        self.data.mkdir()
        self._database_url = database_url
        self._programs = self._write_programs()
        self.services: dict[str, Service] = {}

    def _write_programs(self) -> Path:
        """Make the programs of the image: those of this checkout."""
        programs = self.directory / "bin"
        programs.mkdir()
        for name in ("parlab", "celery", "uvicorn"):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
            (programs / name).chmod(0o755)
        return programs

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a service: that of the file, and nothing of this process."""
        values = service(name, VARIABLES)["environment"]
        values |= {
            "DATABASE_URL": self._database_url,
            "PARLAB_DATA_DIR": str(self.data),
            "PARLAB_TRUSTED_PROXIES": "127.0.0.1",
            "REDIS_URL": values["REDIS_URL"].replace(":6379", f":{self._redis_port}"),
        }
        places = {"PATH": f"{self._programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(self.data)}
        return {**values, **places}

    def start_redis(self) -> None:
        _, *options = service("redis", VARIABLES)["command"]
        directory = self.directory / "redis"
        directory.mkdir()
        redis_server = redis_command(self._redis_port, directory)[0]
        command = [redis_server, *options, "--port", str(self._redis_port), "--dir", str(directory)]
        self._start("redis", command, {"PATH": os.environ["PATH"]})

    def setup(self, *command: str) -> str:
        """Run a command in the place of that of `setup`, to its end."""
        argv = list(command) or service("setup", VARIABLES)["command"]
        environment = {**self.environment("setup"), "DJANGO_SUPERUSER_PASSWORD": PASSWORD}
        done = subprocess.run(argv, env=environment, cwd=self.data, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start_server(self) -> None:
        for name in SERVER:
            command = [part.replace("8000", str(self.web_port)) for part in service(name, VARIABLES)["command"]]
            self._start(name, command, self.environment(name))

    def start_proxy(self) -> tuple[int, Path] | None:
        """Start nginx with TLS; return its port and certificate, None where there is no nginx."""
        path = program("nginx")
        if path is None:
            return None
        ports = {"80": free_port(), "443": free_port(), "8000": self.web_port}
        certificate = self_signed(self.directory, HOST)
        text = (DEPLOY / "proxy" / "nginx.conf").read_text().replace("/etc/parlab/tls", str(self.directory))
        text = text.replace("parlab.example.org", HOST).replace("127.0.0.1:8000", f"127.0.0.1:{self.web_port}")
        text = re.sub(r"listen \[::\].*\n", "", text)
        text = re.sub(r"listen (\d+)", lambda match: f"listen 127.0.0.1:{ports[match[1]]}", text)
        (self.directory / "site").write_text(text)
        places = " ".join(
            f"{kind}_temp_path {self.directory}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main = f"daemon off; master_process off; pid {self.directory}/pid; events {{}}"
        main += f" http {{ access_log off; {places} include {self.directory}/site; }}"
        (self.directory / "nginx.conf").write_text(main)
        errors = str(self.directory / "errors")
        self._start("proxy", [path, "-e", errors, "-c", str(self.directory / "nginx.conf")], {})
        return ports["443"], certificate

    def start_prometheus(self, url: str, certificate: Path | None) -> str | None:
        """Start Prometheus with its file; return its address, None where there is none."""
        path = program("prometheus")
        if path is None:
            return None
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
        config["global"]["scrape_interval"] = "1s"
        [job] = config["scrape_configs"]
        scheme, _, target = url.partition("://")
        (self.directory / "token").write_text(METRICS_TOKEN)
        job["scheme"], job["authorization"]["credentials_file"] = scheme, str(self.directory / "token")
        job["static_configs"][0]["targets"] = [target]
        job["tls_config"] = {"ca_file": str(certificate)} if certificate else {}
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        places = ["--config.file", self.directory / "prometheus.yml", "--storage.tsdb.path", self.directory / "tsdb"]
        command = [path, *map(str, places), f"--web.listen-address={address}"]
        self._start("prometheus", command, {"NO_PROXY": "*"})
        return f"http://{address}"

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        log = self.directory / f"{name}.log"
        self.services[name] = Service(name, command, environment, log, self.data)
        self.services[name].start()

    def close(self) -> None:
        for name in reversed(list(self.services)):
            self.services[name].end(signal.SIGTERM)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-1_500:]}" for path in self.directory.glob("*.log"))


class Browser:
    """Asks over TLS and the proxy where there is one, else as the proxy does."""

    def __init__(self, composed: Composed, proxy: tuple[int, Path] | None) -> None:
        self._cookies = http.cookiejar.CookieJar()
        handlers: list[Any] = [urllib.request.ProxyHandler({})]
        self._headers = {}
        if proxy:
            port, certificate = proxy
            self.url = f"https://{HOST}:{port}"
            handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(certificate))))
            handlers.append(urllib.request.HTTPCookieProcessor(self._cookies))
        else:
            self.url = f"http://{HOST}:{composed.web_port}"
            self._headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, data, {**self._headers, "Referer": self.url, **headers})
        try:
            with self._opener.open(request, timeout=PATIENCE_S) as answer:
                return int(answer.status), answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)


@pytest.fixture
def composed(tmp_path: Path) -> Iterator[Composed]:
    with ExitStack() as stack:
        postgres = Postgres(tmp_path)
        stack.callback(postgres.close)
        composed = Composed(tmp_path, postgres.start())
        stack.callback(composed.close)
        composed.start_redis()
        composed.setup()
        yield composed


def test_the_services_of_the_compose_file_serve_a_login_page_and_all_of_them_work(composed: Composed) -> None:
    composed.start_server()
    proxy = composed.start_proxy()
    browser = Browser(composed, proxy)
    wait_for(lambda: browser.get("/health")[0] == 200, "the server answers")
    status, page = browser.get("/login/")
    assert (status, 'name="csrfmiddlewaretoken"' in page) == (200, True), composed.logs()
    sheet = re.search(r'href="(/static/[\w./-]+\.[0-9a-f]{12}\.css)"', page)
    assert sheet is not None
    assert browser.get(sheet[1])[0] == 200
    # A worker for each queue, and beat, which asks them.
    wait_for(lambda: browser.get("/ready")[0] == 200, f"all parts work: {browser.get('/ready')[1]}")

    composed.setup("parlab", "manage", "createsuperuser", "--no-input", "--username=ada", "--email=ada@example.org")
    token = composed.setup("parlab", "manage", "token", "ada").split()[-1]
    body = (ROOT / "tests/formats/megatron/core_timers.log").read_bytes()
    head = b'--part\r\nContent-Disposition: form-data; name="file"; filename="core_timers.log"\r\n\r\n'
    boundary = {"Content-Type": "multipart/form-data; boundary=part", "Authorization": f"Token {token}"}
    status, text = browser.get("/api/imports/", head + body + b"\r\n--part--\r\n", **boundary)
    assert status == 201, text
    slug = json.loads(text)["imports"][0]["experiment"]
    assert browser.get(f"/api/experiments/{slug}/", Authorization=f"Token {token}")[0] == 200

    check_metrics(composed, browser, proxy)

    # Behind a proxy the server answers nobody without TLS, but probes.
    plain = f"http://127.0.0.1:{composed.web_port}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    with pytest.raises(urllib.error.HTTPError, match="301"):
        opener.open(f"{plain}/login/")
    assert opener.open(f"{plain}/health").status == 200


def check_metrics(composed: Composed, browser: Browser, proxy: tuple[int, Path] | None) -> None:
    """Have Prometheus scrape the server, through the proxy; without it, read what it would."""
    needed = {"parlab_info", "parlab_queue_messages", "parlab_http_requests_total", "parlab_tasks_total"}

    def scraped() -> bool:
        status, text = browser.get("/metrics?runs=1", Authorization=f"Bearer {METRICS_TOKEN}")
        names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
        return status == 200 and needed <= names

    wait_for(scraped, "the counters of all processes are in the metrics")
    prometheus = composed.start_prometheus(browser.url, proxy[1]) if proxy else None
    if prometheus is None:
        return
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def stored() -> bool:
        names = set()
        for name in needed:
            try:
                answer = json.load(opener.open(f"{prometheus}/api/v1/query?query={name}", timeout=20))
            except OSError:
                return False
            names |= {row["metric"]["__name__"] for row in answer["data"]["result"]}
        return names == needed

    wait_for(stored, "Prometheus has the metrics")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None
