"""The files of `deploy/`, read: services, units, manifests, and the commands that they start."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = DEPLOY / "systemd"
PROCESSES = ("setup", "web", "worker", "pictures", "beat")
_VARIABLE = re.compile(r"\$\{(\w+)(?::([?-])([^}]*))?\}")


@cache
def compose() -> dict[str, Any]:
    """Return the compose file as it is written."""
    content: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return content


def service(name: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a service of the compose file with its variables filled in, as compose does."""
    filled: dict[str, Any] = _filled(compose()["services"][name], variables)
    return filled


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, variables) for each in value]
    return _VARIABLE.sub(lambda match: _value(match, variables), value) if isinstance(value, str) else value


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name, kind, text = match.groups()
    if name in variables:
        return variables[name]
    assert kind == "-", f"{name} is required"
    return str(text)


def manifests() -> Iterator[dict[str, Any]]:
    """Yield the objects of the Kubernetes manifests."""
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text())


def unit(name: str) -> configparser.RawConfigParser:
    """Read a unit of systemd; the values of a key that is repeated are joined by line ends."""
    parser = configparser.RawConfigParser(strict=False, dict_type=_Repeated, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    parser.read_string((UNITS / name).read_text())
    return parser


class _Repeated(dict[str, Any]):
    """Keeps the values of a key that is set twice, as systemd does."""

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, list) and isinstance(self.get(key), list):
            value = [*self[key], *value]
        super().__setitem__(key, value)


def commands_of_compose() -> dict[str, list[str]]:
    """Return the command of each process of the server."""
    return {name: compose()["services"][name]["command"] for name in PROCESSES}


def pod_of_the_server() -> dict[str, Any]:
    """Return the pod of the server; the controller of a pool has a deployment of its own."""
    deployments = {each["metadata"]["name"]: each for each in manifests() if each["kind"] == "Deployment"}
    pod: dict[str, Any] = deployments["parlab"]["spec"]["template"]["spec"]
    return pod


def commands_of_kubernetes() -> dict[str, list[str]]:
    """Return the command of each container of the server."""
    pod = pod_of_the_server()
    return {each["name"]: each["command"] for each in [*pod["initContainers"], *pod["containers"]]}


def commands_of_systemd() -> dict[str, list[str]]:
    """Return the command of each unit of the server, without the directory of its program."""
    commands = {}
    for path in UNITS.glob("parlab-*.service"):
        lines = unit(path.name)["Service"]["ExecStart"].splitlines()
        plain = [line.replace("/opt/parlab/bin/", "") for line in lines]
        name = path.stem.removeprefix("parlab-").removesuffix("@")
        commands[name] = shlex.split(plain[0]) if len(plain) == 1 else ["sh", "-c", " && ".join(plain)]
    return commands
