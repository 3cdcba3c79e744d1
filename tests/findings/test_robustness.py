"""For any content of a document or summary the rules do not raise, terminate, and report each contradiction once."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.findings import MAX_PER_RULE, RULES, RunFacts, document_findings, run_findings, sweep_findings
from parlab.findings.contradictions import Amount, agree, looks_like, printed, shown
from parlab.findings.tables import _COLUMNS
from parlab.formats.schema import (
    Cell,
    Config,
    Document,
    Figure,
    Launch,
    Lines,
    PrintedCell,
    Segment,
    Statistic,
    StepRecord,
    Steps,
    StepTime,
    Table,
)

CASES = range(200)
NUMBERS = [0.0, -1.0, 1.0, 2.0, 8.0, 64.0, 0.35, 1e-300, 1e300, 2.0**52, -1e300, 5e-324, 1.7976931348623157e308]
WHOLE = [None, None, 0, 1, 2, 3, 8, 64, 2**52]
VALUES = [
    "step_time_s", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "flops_per_gpu", "consumed_samples",
    "global_batch_size", "mfu_pct", "running_avg_samples_per_s", "script_samples_per_s", "lm_loss",
]  # fmt: skip
FIGURES = [
    "ms_per_sample", "measured_samples", "measured_iterations", "ms_per_iteration", "gpu_util_pct",
    "tuning_experiments", "number_of_experiments", "throughput_improvement_over_baseline", "mfu_pct",
]  # fmt: skip
TIMERS = ["forward-compute", "backward-compute", "optimizer", "forward-backward", "forward", "x"]
COLUMNS = [
    *sorted(name for names in _COLUMNS.values() for name in names), "TFlops %", "TFlops Aggreg", "tuning_space",
    "num_experiments", "best_metric_val", "best_exp_name", "baseline", "HF + DS autotuning", "", "Speed (s)",
]  # fmt: skip
LABELS = ["global", "total", "z0", "", "52B", "1.5s", "OOM", "4.4", "9" * 300, "-", "12%"]
ARGUMENTS = ["context_parallel_size", "recompute_granularity", "padded_vocab_size", "num_experts", "a.cp"]
ANYTHING: list[Any] = [
    *NUMBERS, *WHOLE, True, False, "", "x", [1, 2], [], {}, math.nan, math.inf, -math.inf, 10**400,
    {"median": math.nan},
]  # fmt: skip


class Maker:
    """Generates documents and runs with extreme numbers, deterministic for a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def choice(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def some(self, names: Sequence[str], make: Callable[[], Any]) -> dict[str, Any]:
        return {name: make() for name in names if self.random.random() < 0.5}

    def figure(self) -> Figure:
        value = self.choice([None, *NUMBERS])
        return Figure(value=value, text=f"{value} ms", line=3, section="Results")

    def statistic(self) -> Statistic:
        low, high = sorted((self.choice(NUMBERS), self.choice(NUMBERS)))
        return Statistic(count=2, first=low, last=high, mean=low, median=low, min=low, max=high)

    def record(self) -> StepRecord | None:
        values = self.some(VALUES, lambda: self.choice(NUMBERS))
        printed = {name: PrintedCell(value=self.choice(LABELS), name=name) for name in values}
        time = self.choice([None, "2024-01-01 10:00:00", "x"])
        record = StepRecord(iteration=self.choice(WHOLE), line=9, time=time, values=values, printed=printed)
        return record if self.random.random() < 0.7 else None

    def segment(self) -> Segment:
        sizes = [name for name in Launch.model_fields if name.endswith(("size", "steps", "length", "layers"))]
        seconds = self.choice(NUMBERS)
        return Segment(
            launch=Launch(
                **self.some(sizes, lambda: self.choice(WHOLE)),
                precision=self.choice([None, "fp16"]),
                arguments=self.some(ARGUMENTS, lambda: self.choice(ANYTHING)),
            ),
            records=self.choice([0, 2]),
            first=self.record(),
            last=self.record(),
            step_time_s=self.choice([None, StepTime(median=seconds, mean=seconds, p10=seconds, p90=seconds)]),
            samples_per_s=self.choice([None, *NUMBERS]),
            timers_s=self.some(TIMERS, self.statistic),
            metrics=self.some(VALUES, self.statistic),
            steps=self.choice([None, Steps(count=2, first=self.choice(WHOLE), last=self.choice(WHOLE))]),
            figures=self.some(FIGURES, self.figure),
            section=self.choice([None, "8 GPUs", "16 GPUs, fp16"]),
            lines=self.choice([None, Lines(first=1, last=2)]),
        )

    def table(self) -> Table:
        """Rows may be shorter or longer than the header."""
        columns = [self.choice(COLUMNS) for _ in range(self.choice([0, 1, 4, 8]))]
        rows = [[self.cell() for _ in range(self.choice([0, 4, 8, 9]))] for _ in range(self.choice([0, 1, 4, 6]))]
        return Table(line=1, columns=columns, header=[columns], rows=rows, section="Results")

    def cell(self) -> Cell:
        text = self.choice(LABELS)
        if self.random.random() < 0.3:
            return Cell(text=text, kind="text")
        return Cell(text=text, kind="number", value=self.choice(NUMBERS), unit=self.choice(["", "s", "B", "%"]))

    def nested(self, depth: int = 0) -> Any:
        names = ["device_mapping", "stage_cnt", "sharding_size", "stage_0"]
        return (
            self.choice(ANYTHING)
            if depth > 3
            else self.some(names, lambda: self.nested(depth + self.choice([1, 2, 4])))
        )

    def document(self) -> Document:
        return Document(
            file="x",
            format="x",
            segments=[self.segment() for _ in range(self.choice([0, 1, 5]))],
            tables=[self.table() for _ in range(self.choice([0, 1, 3]))],
            figures=self.some(FIGURES, lambda: [self.figure() for _ in range(self.choice([0, 1, 2]))]),
            configs=[Config(line=1, data=self.nested()) for _ in range(2)],
        )

    def run(self, number: int) -> RunFacts:
        summary = self.some(
            ["samples_per_s", "tokens_per_s", "ms_per_sample", "step_time_s", "timers_s", "loss", "steps", "mfu_pct",
             "tflops_per_gpu"],
            lambda: self.choice([self.choice(ANYTHING), self.part(["median", "first", "last", "left_out", *TIMERS])]),
        )  # fmt: skip
        fields = [
            "global_batch_size",
            "num_layers",
            "hidden_size",
            "sequence_length",
            "precision",
            "nodes",
            "iterations",
        ]
        return RunFacts(
            number,
            self.choice(["finished", "oom"]),
            self.some(["train", "model", "parallel", "cluster"], lambda: self.part(fields)),
            summary,
            self.some(["world_size", "global_batch_size", "swiglu", "num_layers"], lambda: self.choice(ANYTHING)),
            self.some(["train.micro_batch_size", "parallel.schedule"], lambda: self.choice(ANYTHING)),
            self.choice([None, "NVIDIA A100-SXM4-40GB", ""]),
        )

    def part(self, names: Sequence[str]) -> Any:
        inner = {"median": self.choice(ANYTHING), "by_rank": {"0": self.choice(ANYTHING)}}
        return self.choice([self.choice(ANYTHING), *[self.some(names, lambda: self.choice([*ANYTHING, inner]))] * 4])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_no_document_makes_a_rule_raise_or_a_finding_unfit_for_json(seed: int) -> None:
    rules: set[str] = set()
    for case in CASES:
        document = Maker(seed * len(CASES) + case).document()
        before = document.model_dump_json()

        findings = document_findings(document)

        assert document.model_dump_json() == before
        places = [(finding.rule, finding.where.model_dump_json()) for finding in findings]
        assert len(set(places)) == len(places), case
        for finding in findings:
            assert finding.message.endswith("."), case
            json.dumps(finding.model_dump(), allow_nan=False)
        rules |= {finding.rule for finding in findings}
    # Documents without findings would prove nothing.
    assert len(rules) > len(RULES) // 3


@pytest.mark.parametrize("seed", [0, 1])
def test_no_run_and_no_sweep_makes_a_rule_raise(seed: int) -> None:
    rules: set[str] = set()
    for case in CASES:
        maker = Maker(seed * len(CASES) + case)
        runs = [maker.run(number) for number in range(1, 8)]
        findings = [*(finding for run in runs for finding in run_findings(run)), *sweep_findings(runs)]
        for finding in findings:
            assert finding.where.run is not None
            json.dumps(finding.model_dump(), allow_nan=False)
        rules |= {finding.rule for finding in findings}
    assert len(rules) > 2


def test_a_table_of_wrong_rows_gives_a_bounded_number_of_findings() -> None:
    row = [Cell(text=text, kind="number", value=float(text)) for text in ("8", "1", "1", "1")]
    table = Table(line=1, columns=["GPUs", "TP", "PP", "DP"], header=[], rows=[row] * 5000)

    findings = document_findings(Document(file="x", format="x", tables=[table] * 20))

    assert len(findings) == MAX_PER_RULE


@given(st.decimals(min_value="0.001", max_value="1e9", places=3))
def test_a_number_agrees_with_itself_however_many_digits_are_printed(number: Any) -> None:
    for digits in range(4):
        amount = printed(f"{number:.{digits}f} ms")
        assert amount is not None
        assert agree(amount, Amount(float(number)))


@given(st.text(max_size=40))
def test_any_text_is_a_finite_amount_or_none(text: str) -> None:
    amount = printed(text)

    assert amount is None or (math.isfinite(amount.value) and amount.slack > 0)


def test_amounts_carry_their_digits_through_products_and_quotients() -> None:
    assert printed("22.39 ms") == Amount(22.39, 0.005)
    assert printed("1,280") == Amount(1280.0, 0.5)
    assert printed("4.71e3") == Amount(4710.0, 5.0)
    assert printed("none") is None
    product = Amount(100.0, 1.0).times(Amount(10.0, 0.5))
    assert (product.value, product.slack) == (1000.0, 60.5)
    quotient = Amount(100.0, 1.0).over(Amount(10.0, 0.5))
    assert quotient.value == 10.0
    assert math.isclose(quotient.slack, 0.6)


def test_numbers_in_messages_keep_their_digits() -> None:
    assert [shown(value) for value in (12800.0, 0.87, 44.9, 27.497, 123456.7, 1e22)] == [
        "12,800", "0.87", "44.9", "27.497", "123,457", "1e+22",
    ]  # fmt: skip


def test_a_factor_is_named_only_near_a_known_one() -> None:
    assert "1,000 suggests a wrong unit prefix" in looks_like(1010)
    assert "8 suggests bits instead of bytes" in looks_like(7.9)
    assert looks_like(3.0) == looks_like(math.inf) == looks_like(1.0) == ""
