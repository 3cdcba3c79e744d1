"""Real logs that the project does not hold: read where they lie beside it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.formats import corpus_checks, trainer_checks

CHECKS = corpus_checks.CHECKS | trainer_checks.CHECKS
CORPUS = Path(__file__).parents[3] / "shared" / "corpus"


def entries() -> list[tuple[str, str]]:
    """(file, expected file) of every line of the manifest; none where there is no corpus."""
    manifest = CORPUS / "MANIFEST.tsv"
    if not manifest.exists():
        return []
    with manifest.open(newline="") as stream:
        return [(row["file"], row["expected"]) for row in csv.DictReader(stream, delimiter="\t")]


@pytest.mark.parametrize(("file", "expected"), entries())
def test_a_log_of_the_corpus_yields_its_figures(file: str, expected: str) -> None:
    figures = json.loads((CORPUS / expected).read_text())
    CHECKS[Path(expected).name](CORPUS / file, figures)
