"""The table of rules: each is documented and has at least one check."""

from __future__ import annotations

import re
from pathlib import Path

from parlab.findings import RULES

DOCS = Path(__file__).parents[2] / "docs" / "understand" / "findings.md"


def test_the_documentation_has_a_row_for_each_rule_with_its_severity() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \|", DOCS.read_text(), re.MULTILINE)

    assert rows == [(id, rule.severity) for id, rule in RULES.items()]


def test_each_rule_has_a_check() -> None:
    assert [id for id, rule in RULES.items() if not (rule.documents or rule.runs or rule.sweeps)] == []
