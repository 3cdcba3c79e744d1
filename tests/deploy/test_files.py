"""`deploy/`: each file is valid for the program that reads it, and all start the same processes."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from django.conf import settings

from tests.deploy.certificates import self_signed
from tests.deploy.files import (
    DEPLOY,
    PROCESSES,
    ROOT,
    UNITS,
    commands_of_compose,
    commands_of_kubernetes,
    commands_of_systemd,
    compose,
    manifests,
    pod_of_the_server,
    unit,
)
from tests.deploy.install import program
from tests.docs.settings import settings_rows

OF_OTHERS = {
    *("POSTGRES_DB", "POSTGRES_USER", "POSTGRES_PASSWORD", "PGDATA", "REDISCLI_AUTH", "REDIS_PASSWORD"),
    *(
        "PYTHONUNBUFFERED",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ENDPOINT_URL",
        "PARLAB_HOST",
        "PARLAB_WEB",
        "PARLAB_TLS",
        "PARLAB_REDIS_BIND",
    ),
}
"""Variables of other programs, and of the proxy."""
KEYS = {
    "Unit": "Description PartOf After Requires Wants",
    "Install": "WantedBy",
    "Service": "Type RemainAfterExit ExecStart Restart RestartSec TimeoutStartSec TimeoutStopSec KillMode OOMPolicy"
    " User Environment EnvironmentFile StateDirectory StateDirectoryMode WorkingDirectory UMask LimitNOFILE"
    " LimitMEMLOCK TasksMax NoNewPrivileges PrivateTmp PrivateDevices ProtectSystem ProtectHome ProtectKernelTunables"
    " ProtectControlGroups CapabilityBoundingSet",
}
"""Keys of units: systemd ignores one that is spelled wrong."""


def checked(name: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Have a program of Debian check a file, where it is; the checks in Python are in each test."""
    if path := program(name):
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, env=env, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_follows_its_specification() -> None:
    schema = resources.files("check_jsonschema.builtin_schemas") / "vendor" / "compose-spec.json"
    jsonschema.Draft7Validator(json.loads(schema.read_text())).validate(compose())


def test_the_manifests_follow_the_schemas_of_kubernetes() -> None:
    kinds = []
    for manifest in manifests():
        kubernetes_validate.validate(manifest, "1.30", strict=True)
        kinds.append(manifest["kind"])
    assert {"Deployment", "Service", "Ingress", "PersistentVolumeClaim", "Secret"} <= set(kinds)


def test_all_start_the_same_processes() -> None:
    expected = commands_of_compose()
    assert set(expected) == set(PROCESSES)
    assert commands_of_kubernetes() == expected
    units = commands_of_systemd()
    del units["node"]
    for name, command in expected.items():
        # Containers are reached from outside, units by a proxy on the same machine; units of one host need names.
        adapted = [each.replace("0.0.0.0", "127.0.0.1") for each in command]
        assert [each for each in units[name] if not each.startswith("--hostname=")] == adapted


def test_the_workers_take_all_queues() -> None:
    taken = [part for command in commands_of_compose().values() for part in command if part.startswith("--queues=")]
    names = {name for part in taken for name in part.removeprefix("--queues=").split(",")}
    assert names == {queue.name for queue in settings.CELERY_TASK_QUEUES}


def test_the_server_runs_without_root_on_a_root_that_is_read_only() -> None:
    for name in PROCESSES:
        service = compose()["services"][name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    pod = pod_of_the_server()
    assert pod["securityContext"]["runAsNonRoot"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["securityContext"]["readOnlyRootFilesystem"]


def variables() -> Iterable[str]:
    yield from compose()["x-parlab"]["environment"]
    for path in [DEPLOY / "env.example", *UNITS.glob("*.example")]:
        yield from re.findall(r"^(\w+)=", path.read_text(), re.MULTILINE)
    for manifest in manifests():
        if manifest["kind"] in ("ConfigMap", "Secret"):
            yield from manifest.get("data") or manifest["stringData"]


def test_each_variable_is_a_setting() -> None:
    known = {name.strip("`") for name, *_ in settings_rows()} | OF_OTHERS | {"PARLAB_SERVER", "PARLAB_CODE"}
    assert set(variables()) <= known


@pytest.mark.parametrize("path", sorted(UNITS.glob("*.[st]*e*")), ids=lambda path: path.name)
def test_a_unit_has_only_keys_of_systemd(path: Path) -> None:
    if path.suffix == ".example":
        return
    parsed = unit(path.name)
    for section in parsed.sections():
        assert set(parsed[section]) <= set(KEYS[section].split()), section


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in [*UNITS.glob("*.service"), *UNITS.glob("*.target")]:
        (tmp_path / path.name).write_text(re.sub(r"/opt/parlab/bin/\w+", "/bin/true", path.read_text()))
    wanted = " ".join((UNITS / "parlab.target").read_text().split())
    started = {re.sub(r"@\d+", "@", name) for name in re.findall(r"parlab-[\w@]+\.service", wanted)}
    assert started | {"parlab-setup.service", "parlab-node.service"} == {path.name for path in UNITS.glob("*.service")}
    units = sorted(str(path) for path in tmp_path.iterdir() if "@" not in path.name)
    checked("systemd-analyze", "verify", "--man=no", *units, str(tmp_path / "parlab-worker@.service"))


def test_a_restart_of_the_node_unit_keeps_its_runs() -> None:
    assert unit("parlab-node.service")["Service"]["KillMode"] == "process"


def directives(text: str) -> list[list[str]]:
    """Split a configuration of nginx into directives. Raises AssertionError for braces that do not match."""
    tokens = re.findall(r'"[^"]*"|[{};]|[^\s{};]+', re.sub(r"#.*", "", text))
    result: list[list[str]] = []
    current: list[str] = []
    depth = 0
    for token in tokens:
        if token in "{};":
            assert current or token == "}", f"a directive is missing before {token}"
            depth += {"{": 1, "}": -1, ";": 0}[token]
            result += [current] if current else []
            current = []
        else:
            current.append(token)
    assert (depth, current) == (0, [])
    return result


def test_nginx_passes_on_who_asks_and_takes_the_largest_uploads(tmp_path: Path) -> None:
    text = (DEPLOY / "proxy" / "nginx.conf").read_text()
    rows = directives(text)
    assert ["proxy_set_header", "X-Forwarded-For", "$remote_addr"] in rows  # not what the client sent
    assert ["proxy_set_header", "X-Forwarded-Proto", "$scheme"] in rows
    assert ["proxy_buffering", "off"] in rows
    [[_, size]] = [row for row in rows if row[0] == "client_max_body_size"]
    assert int(size.removesuffix("m")) > max(settings.UPLOAD_LIMIT_MIB, settings.ARTIFACT_LIMIT_MIB)

    self_signed(tmp_path, "parlab.example.org")
    (tmp_path / "site").write_text(text.replace("/etc/parlab/tls", str(tmp_path)))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    drafts = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)  # no folder of an installed nginx
    drafts += f" access_log {tmp_path}/access;"
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; events {{}} http {{ {drafts} include {tmp_path}/site; }}"
    )
    checked("nginx", "-t", "-e", str(tmp_path / "errors"), "-c", str(tmp_path / "nginx.conf"))


def test_caddy_passes_on_who_asks(tmp_path: Path) -> None:
    path = DEPLOY / "proxy" / "Caddyfile"
    lines = [
        line.split() for line in path.read_text().splitlines() if line.strip() and not line.strip().startswith("#")
    ]
    assert lines[0] == ["{$PARLAB_HOST}", "{"]
    assert lines[-1] == ["}"]
    assert ["reverse_proxy", "{$PARLAB_WEB}"] in lines
    assert set(re.findall(r"\{\$(\w+)\}", path.read_text())) <= set(compose()["services"]["proxy"]["environment"])
    env = {
        "HOME": str(tmp_path),
        "PARLAB_HOST": "parlab.example.org",
        "PARLAB_WEB": "web:8000",
        "PARLAB_TLS": "internal",
    }
    checked("caddy", "validate", "--adapter", "caddyfile", "--config", str(path), env=env)


def test_prometheus_accepts_its_configuration() -> None:
    path = DEPLOY / "prometheus.yml"
    [job] = yaml.safe_load(path.read_text())["scrape_configs"]
    assert (job["metrics_path"], job["scheme"], job["params"]) == ("/metrics", "https", {"runs": ["1"]})
    checked("promtool", "check", "config", "--syntax-only", str(path))


def stages() -> dict[str, list[list[str]]]:
    """Return the instructions of each stage of the Containerfile."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    result: dict[str, list[list[str]]] = {"": []}
    for line in filter(None, map(str.strip, text.splitlines())):
        words = line.split()
        if words[0] == "FROM":
            assert words[1] in ("${PYTHON_IMAGE}", *result), words
            result[words[3]] = []
        else:
            result[list(result)[-1]].append(words)
    return result


def test_both_images_run_as_a_user_and_keep_data_in_a_volume() -> None:
    for name, directory in (("server", "/data"), ("node", "/state")):
        instructions = stages()[name]
        assert ["USER", "10001:10001"] in instructions
        assert ["VOLUME", directory] in instructions
        after = instructions[instructions.index(["USER", "10001:10001"]) :]
        assert not [words for words in after if words[0] in ("RUN", "COPY")]
    # Its sandbox needs namespaces that a confined container does not get.
    [settings_of_image] = [words for words in stages()["server"] if words[0] == "ENV"]
    assert "PARLAB_CHROMIUM_SANDBOX=0" in settings_of_image


def test_the_images_are_built_from_what_the_wheel_contains() -> None:
    copied = {source for words in stages()["wheel"] if words[0] == "COPY" for source in words[1:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"], "LICENSE", "NOTICE"}
    assert files <= copied
    assert all((ROOT / source).exists() for source in copied)
    for name in ("server-packages", "node-packages"):
        [[_, *words]] = stages()[name]
        assert "--constraint requirements.txt" in " ".join(words)


def test_operations_name_each_file_and_each_file_that_they_name_exists() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "operate").glob("*.md"))
    for name in set(re.findall(r"\bdeploy/[\w./@-]*\w", text)) - {"deploy/.env"}:
        assert (ROOT / name).exists(), name
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            folder = path.parent.relative_to(ROOT)
            assert f"{folder}/{path.name}" in text or f"`{folder}/`" in text or f"{folder}/*" in text, path
