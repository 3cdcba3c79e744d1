"""Healthy pages of many kinds have no findings; the same pages with one planted contradiction have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.reading import findings_of, rules_of

PAGES = sorted((Path(__file__).parent / "healthy").iterdir())


def page(name: str) -> str:
    return (Path(__file__).parent / "healthy" / name).read_text()


def test_there_are_twenty_healthy_pages() -> None:
    assert len(PAGES) == 20


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_healthy_page_has_no_findings(path: Path) -> None:
    assert [(finding.rule, finding.message) for finding in findings_of(path.read_text())] == []


@pytest.mark.parametrize(
    ("name", "healthy", "planted", "rule"),
    [
        ("strong_scaling.md", "| 301.8 |", "| 3018.0 |", "off-neighbours"),
        ("strong_scaling.md", "| 91.6 % |", "| 119.5 % |", "efficiency-above-one"),
        ("tuning.md", "Total number of experiments: 18", "Total number of experiments: 19", "total-of-rows"),
        ("tuning.md", "| global | 18 |", "| global | 17 |", "total-of-rows"),
        ("tuning.md", "baseline: 1.11x", "baseline: 1.31x", "improvement"),
        ("tuning.md", "502.91 (", "352.91 (", "tuner-metric"),
        ("two_tunings_two_sections.md", "experiments: 23.\n", "experiments: 22.\n", "total-of-rows"),
        ("two_tunings_two_sections.md", "| global | 23 | 64.3 |", "| global | 23 | 66.3 |", "best-row"),
        ("two_tunings_one_section.md", "| global | 23 |", "| global | 24 |", "total-of-rows"),
        ("layouts.md", "| 128 | 2 | 32 | 256 |", "| 64 | 2 | 32 | 256 |", "gpus-of-layout"),
        ("layouts.md", "| 128 | 2 | 32 | 256 |", "| 128 | 2 | 32 | 512 |", "batch-of-parts"),
        ("mfu.md", "52.3 %", "152.3 %", "above-peak"),
        ("mfu.md", "| 1304.8 |", "| 13048.0 |", "aggregate"),
        (
            "log_in_a_page.md",
            "consumed samples:         3200",
            "consumed samples:         2300",
            "samples-of-iterations",
        ),
    ],
)
def test_a_planted_contradiction_is_reported(name: str, healthy: str, planted: str, rule: str) -> None:
    text = page(name)
    assert text.count(healthy) >= 1, text
    assert rule in rules_of(text.replace(healthy, planted, 1))
