"""What the wheel contains, and what it requires."""

from __future__ import annotations

import re
import subprocess
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from parlab.client.version import VERSION
from tests.package.conftest import ROOT

INFO = f"parlab-{VERSION}.dist-info"


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"{INFO}/METADATA"))


def tracked(*folders: str) -> set[str]:
    """Files of the checkout that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()}


def test_the_wheel_has_every_file_of_the_packages_and_of_the_pages(names: set[str]) -> None:
    shipped = {f"parlab/{name}" for name in tracked("templates", "static", "docs/understand/findings.md")}
    assert {"parlab/templates/base.html", "parlab/static/css/site.css", "parlab/docs/understand/findings.md"} <= shipped
    assert tracked("parlab", "runners") | shipped <= names
    assert {"parlab/py.typed", "runners/py.typed", f"{INFO}/licenses/LICENSE", f"{INFO}/licenses/NOTICE"} <= names


def test_the_wheel_has_no_file_that_does_not_belong_into_it(names: set[str]) -> None:
    assert {name.partition("/")[0] for name in names} == {"parlab", "runners", INFO}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".sqlite3"))]


def test_the_version_and_the_licence_are_those_of_the_metadata(metadata: Message) -> None:
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.9"


def test_the_client_requires_nothing_and_the_server_no_training_framework(metadata: Message) -> None:
    requirements = metadata.get_all("Requires-Dist", [])
    extras = {extra: set[str]() for extra in metadata.get_all("Provides-Extra", [])}
    for requirement in requirements:
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        assert extra, f"{requirement} is required without an extra"
        extras[extra[1]].add(re.split(r"[\[<>=;~ ]", requirement)[0].lower())
    assert set(extras) == {"aim", "server", "node", "kubernetes", "archive", "mcp", "s3", "tensorboard", "terminal"}
    frameworks = {"torch", "deepspeed", "transformers", "accelerate"}
    assert frameworks <= extras["node"]
    assert not frameworks & extras["server"]
    assert "django" not in extras["node"]


def test_no_requirement_is_pinned_to_one_version(metadata: Message) -> None:
    assert not [text for text in metadata.get_all("Requires-Dist", []) if re.search(r"[^'\"]==\s*\d", text)]
