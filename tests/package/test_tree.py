"""Folders have a readable size; what is not ours has its licence, and each requirement its reason."""

from __future__ import annotations

import re
import tomllib
from collections import Counter

from packaging.requirements import Requirement

from tests.package.conftest import ROOT

MOST = 25
SOURCES = (".py", ".html", ".js", ".css")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_no_folder_has_more_than_twenty_five_source_files() -> None:
    files = [path for folder in ("parlab", "runners", "templates", "static") for path in (ROOT / folder).rglob("*")]
    counts = Counter(path.parent for path in files if path.suffix in SOURCES and path.name != "__init__.py")
    assert len(counts) > 80
    assert {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > MOST} == {}


def test_the_notice_names_everything_that_is_shipped_of_others() -> None:
    notice = (ROOT / "NOTICE").read_text()
    shipped = sorted(folder for folder in (ROOT / "static" / "vendor").iterdir())
    assert [folder.name for folder in shipped if f"static/vendor/{folder.name}/" not in notice] == []
    assert [folder.name for folder in shipped if f"{folder.name}/LICENSE" not in notice] == []
    assert all((folder / "LICENSE").is_file() for folder in shipped)
    scripts = [path.name for path in (ROOT / "docs" / "assets").glob("*.js")]
    assert [name for name in scripts if f"docs/assets/{name}" not in notice] == []
    bundle = (ROOT / "static" / "vendor" / "plotly" / "plotly-basic.min.js").read_text(encoding="utf-8")
    assert f"plotly.js {re.findall(r'v([0-9.]+)', bundle[:200])[0]}," in notice


def test_each_requirement_has_its_reason() -> None:
    reasons = (ROOT / "CONTRIBUTING.md").read_text().lower()
    extras, dev = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]["dev"]
    names = {Requirement(text).name.lower() for texts in (*extras.values(), dev) for text in texts}
    # Stubs belong to the packages that they describe.
    stubs = {name for name in names if "types" in name or "stubs" in name} - {"django-stubs-ext"}
    assert {name for name in names - stubs if f"**{name}**" not in reasons} == set()
