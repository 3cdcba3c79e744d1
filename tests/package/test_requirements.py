"""The extras of pyproject.toml name what the code imports, and the lock file fulfils them."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.package.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {"mcp", "tensorboard", "polars", "protobuf", "mlflow-skinny"}
"""Extras of their own, and what the scripts of the demo report with."""
WITHIN = {"kombu", "pydantic-core"}
"""Parts of celery and pydantic, which come and go with them."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(extra: str) -> set[str]:
    """Distributions that an extra names."""
    return {canonical(Requirement(text).name) for text in PROJECT["optional-dependencies"][extra]}


@cache
def imported(package: Path) -> set[str]:
    """Distributions that the code of a package imports, at the top of a module or within functions."""
    tops = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                tops.add(node.module.partition(".")[0])
    owners = packages_distributions()
    third_party = tops - set(sys.stdlib_module_names) - {"parlab", "runners"}
    # Several distributions may own a name: google is protobuf's, and of others.
    return {"protobuf" if top == "google" else canonical(owners[top][0]) for top in third_party}


@pytest.mark.slow
def test_everything_that_the_server_imports_is_in_its_extra() -> None:
    assert imported(ROOT / "parlab") <= named("server") | WITHIN | OPTIONAL


def test_the_server_installs_no_training_framework() -> None:
    frameworks = {"torch", "deepspeed", "transformers", "accelerate"}
    assert frameworks <= named("node")
    assert not frameworks & named("server")


def test_the_locks_fulfil_the_ranges() -> None:
    """`make lock` after a change of pyproject.toml: the demo and the tests install the locks."""
    pins = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if match := re.match(r"([\w.-]+)==([\w.]+)", line):
            pins[canonical(match[1])] = match[2]
    for extra in ("server", "node"):
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            assert requirement.specifier.contains(pins[canonical(requirement.name)]), f"run make lock: {text}"
