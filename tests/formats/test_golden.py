from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.golden import HERE, cases, golden, result


@pytest.mark.parametrize("case", cases(), ids=lambda path: str(path.relative_to(HERE)))
def test_a_case_reads_as_its_golden_file_says(case: Path) -> None:
    assert golden(case).exists(), f"no {golden(case).name}: run python -m tests.formats.golden and read what it wrote"
    assert result(case) == golden(case).read_text()
