"""Facts of one run, and the HTML of its panels."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.lab.models import Run
from parlab.publishing.panels import panels, step_figure
from parlab.reports.facts import run_block

RECORD: dict[str, Any] = {
    "run": 3,
    "gpus": 2,
    "step_time_s": 1.5,
    "mfu_pct": 40.0,
    "ms_per_sample": 2.5,
    "memory_max_bytes": 2**30,
    "memory_min_bytes": 2**30,
    "figure.ms_per_sample": 2.5,
    "figure.wait_s": 4.0,
    "network.loss_pct": 0.0,
    "network.delay_ms": 10.0,
    "delay_ms": 10.0,
    "launcher.timeout_s": 3600,
    "timer.forward": 0.25,
    "argument.lr_s": 3.0,
    "doubts": {"step_time_s": ("slow",)},
}


def rows(what: str) -> dict[str, str]:
    block = run_block(RECORD, {"what": what}, lambda doubt: 7)
    return {name.text: value.text.replace("\N{NARROW NO-BREAK SPACE}", " ") for name, value in block.rows}


def test_numbers_are_results_and_never_settings() -> None:
    assert rows("numbers") == {
        "Step time": "1.50 s",
        "Time per sample": "2.50 ms",
        "Peak memory": "1.00 GiB",
        "Minimum memory": "1.00 GiB",
        "MFU": "40.0 %",
        "Wait": "4.00 s",
    }
    assert rows("timers") == {"forward": "250.00"}
    assert rows("arguments") == {"lr_s": "3.0"}
    assert rows("configuration") == {"network.loss_pct": "0", "network.delay_ms": "10", "launcher.timeout_s": "3600"}


def test_a_number_with_a_finding_has_a_mark_and_all_digits() -> None:
    first = run_block(RECORD, {}, lambda doubt: 7).rows[0][1]
    assert (first.doubts, first.exact) == ([7], "1.5\N{NARROW NO-BREAK SPACE}s")


@pytest.mark.parametrize(
    ("options", "message"), [({"what": "x"}, "use one of numbers, timers"), ({"what": "timers"}, "has no")]
)
def test_missing_facts_are_reported(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_block({"run": 1}, options, lambda doubt: 1)


@pytest.mark.django_db
def test_panels_omit_fields_without_effect(four_runs: list[Run]) -> None:
    configuration, results = (panel.html for panel in panels(four_runs[0], curve=b"<svg/>"))

    assert "pipeline_parallel_size" in configuration
    assert "trial_timeout_s" not in configuration  # engine pipeline searches for nothing
    assert "trial_timeout" not in results
    assert "<dt>Step time</dt><dd>500\N{NARROW NO-BREAK SPACE}<span>ms</span>" in results
    assert 'src="data:image/svg+xml;base64,' in results
    assert step_figure(four_runs[0]) is None  # it printed no steps


@pytest.mark.django_db
def test_the_panel_of_a_case_draws_its_stages_and_shards(four_runs: list[Run]) -> None:
    run = four_runs[0]
    places = {f"device_mapping.stage_{stage}.shard_0": f"GPU:{stage}" for stage in range(2)}
    run.launch = {"arguments": {"mode": "sharding", **places}}
    configuration = panels(run)[0].html
    assert configuration.count("<title>stage ") == 2
    assert "device_mapping" not in configuration
    assert "sharding" in configuration
