"""Real logs and documents outside the project: exactly their known contradictions are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlab.findings import document_findings
from parlab.formats.files import read_file

SHARED = Path(__file__).parents[3] / "shared"

# File -> (rule, part of the message, lines). Each was checked by hand; all other files are healthy.
KNOWN: dict[str, list[tuple[str, str, list[int]]]] = {
    # The footer of the autotuner counts the profiling run, its table does not.
    "corpus/deepspeed-autotuning/dsexamples_hf_bert-large.README.md": [
        ("total-of-rows", "23 experiments are stated in total, but the 4 rows add up to 22", [47, 55]),
    ],
    # Near the memory limit the autotuner omits a third of the step; elsewhere 4 to 8 %.
    "corpus/deepspeed-autotuning/dsexamples_hf_gpt2-xl.README.md": [
        ("tuner-metric", "40.175 samples/s is 46.1 % above the 27.497 samples/s measured end to end", [39, 54]),
    ],
    # DeepSpeed 0.7: 35 x 2 samples in 5.26 s are 13.31 samples/s.
    "corpus/deepspeed-autotuning/pr2711_metrics.json": [
        ("samples-per-second", "0.013309 samples/s are printed for steps of 5.2597 s: 0.07 samples per step", [1]),
    ],
    # The script's own throughput and the engine's.
    "corpus/deepspeed/dalle299_samplespersec_disagree.log": [
        ("throughputs-apart", "8.6857 samples/s (running avg) and 88.443 samples/s (script)", [2]),
    ],
    "seeds/002_667d9beccae55a7c.txt": [
        ("samples-of-iterations", "1,280 samples are stated, but 100 iterations x 128 samples = 12,800", [629]),
        ("off-neighbours", "44.9 ms per sample (22.3 samples/s) at GPUs 16 is 9.71 times slower", [476]),
    ],
    "seeds/003_f6b3fcaa8b48f162.txt": [
        ("aggregate", "in all 10 rows; the column is in PFLOP/s", [64, 66]),
    ],
}
NO_LOGS = ("corpus/expected/", "corpus/MANIFEST.tsv")


def files() -> list[str]:
    """All logs and documents; empty without the corpus."""
    paths = [path for folder in ("corpus", "seeds") for path in sorted((SHARED / folder).rglob("*")) if path.is_file()]
    names = [path.relative_to(SHARED).as_posix() for path in paths]
    return [name for name in names if not name.startswith(NO_LOGS)]


@pytest.mark.parametrize("name", files())
def test_exactly_the_known_contradictions_are_found(name: str) -> None:
    findings = document_findings(read_file(SHARED / name))
    expected = KNOWN.get(name, [])

    assert [(finding.rule, finding.lines) for finding in findings] == [(rule, lines) for rule, _, lines in expected]
    for finding, (_, text, _) in zip(findings, expected, strict=True):
        assert text in finding.message


@pytest.mark.skipif(not SHARED.exists(), reason="the corpus is not next to the project")
def test_the_known_contradictions_are_of_files_that_exist() -> None:
    assert set(KNOWN) <= set(files())
