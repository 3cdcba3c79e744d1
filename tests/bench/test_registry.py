from __future__ import annotations

import json
import re
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

from parlab.formats.logs.registry import LOGS
from tests.bench import ROOT
from tests.bench.__main__ import main
from tests.bench.campaigns.registry import CAMPAIGNS
from tests.bench.readers import LINES
from tests.bench.registry import BENCHMARKS, LIMIT_S, MOST
from tests.bench.tables import PAGE, measurements, with_tables

EVERY = [*BENCHMARKS, *chain.from_iterable(campaign.benchmarks for campaign in CAMPAIGNS)]


def test_make_bench_has_at_most_thirty_figures_with_targets_and_fits_into_its_limit() -> None:
    assert len(BENCHMARKS) <= MOST
    assert all(row.target for row in BENCHMARKS)
    assert sum(row.seconds for row in BENCHMARKS) <= LIMIT_S


def test_names_are_unique_and_each_function_is_defined() -> None:
    names = [row.name for row in EVERY] + [campaign.name for campaign in CAMPAIGNS]
    assert len(set(names)) == len(names)
    for row in EVERY:
        module, _, function = row.function.partition(":")
        spec = find_spec(f"tests.bench.{module}")
        assert spec is not None, row
        assert spec.origin is not None
        # Not imported: torch and Chromium would take seconds.
        text = (ROOT / spec.origin).read_text()
        assert f"def {function}(scale: Scale) -> Result:" in text, row


def test_make_has_a_command_for_each_campaign() -> None:
    (named,) = re.findall("^CAMPAIGNS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named.split() == [campaign.name for campaign in CAMPAIGNS]


def test_the_tables_of_the_page_are_those_of_the_registry() -> None:
    page = PAGE.read_text()
    assert with_tables(page, {}) == page, "run python -m tests.bench.tables"
    for campaign in CAMPAIGNS:
        assert f"**`make bench-{campaign.name}`**" in page


def test_new_figures_replace_those_of_the_page_and_others_stay(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    row = {"value": 900_000, "ratio": 30.123, "against": "29,878 in rows", "measured_at": "2027-01-02T03:04:05+00:00"}
    output.write_text(json.dumps({"ingest_points_per_s": row, "unknown": row}))
    before, after = PAGE.read_text().splitlines(), with_tables(PAGE.read_text(), measurements(output)).splitlines()
    (changed,) = [line for line, earlier in zip(after, before, strict=True) if line != earlier]
    assert changed.startswith("| `ingest_points_per_s` | ")
    assert changed.endswith(" | **900,000 points/s**, 30.1 x; 29,878 in rows | 2027-01-02 |")


def test_a_page_without_a_table_is_refused_with_its_first_benchmark() -> None:
    with pytest.raises(ValueError, match="no table with ingest_points_per_s"):
        with_tables("# Benchmarks\n", {})


def test_the_readers_of_all_formats_of_logs_are_measured() -> None:
    assert set(LINES) | {"megatron"} == {*LOGS, "pairs"}


def test_an_unknown_benchmark_is_refused_with_the_list_of_campaigns_and_benchmarks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tests.bench", "ingest_points_per_s,speed"])
    assert main() == 2
    message = capsys.readouterr().err
    assert message.startswith("unknown benchmark speed; use advice, chain, cluster, ")
    assert ", ingest_points_per_s, " in message
