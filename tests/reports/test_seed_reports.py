"""The documents that the project grew from, produced again from imported runs: the cells of their tables are equal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.charts.format import DASH, SPACE
from parlab.formats.schema import Document, Table
from parlab.ingest.files.imports import upload_import
from parlab.lab.models import Attempt, Config, Experiment
from parlab.lab.selectors.experiments import experiment_runs, experiment_versions
from parlab.lab.selectors.records import run_records
from parlab.lab.services.reports import report_create
from parlab.publishing.resolve import resolve
from parlab.reports.blocks import CodeBlock, Content, ProblemBlock, TableBlock, ValueBlock
from parlab.reports.document import read
from parlab.reports.templates import TEMPLATES
from tests.pages.conftest import finish

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(not SEEDS.is_dir(), reason="the founding documents are not beside the project"),
]

Written = tuple[Document, Content, Experiment, str]


@pytest.fixture
def written(user: User) -> Callable[[str, str], Written]:
    """Import a document by its number and write the report of a template about it."""

    def write(number: str, template: str) -> Written:
        path = next(SEEDS.glob(f"{number}_*"))
        text = path.read_bytes()
        [imported] = upload_import(experiment=None, name=path.name, stream=io.BytesIO(text), user=user)
        experiment = imported.experiment
        assert experiment is not None
        runs = experiment_runs(experiment, experiment_versions(experiment, ""))
        made = TEMPLATES[template].text(experiment.name, run_records(runs))
        report = report_create(title=experiment.name, text=made, experiment=experiment, user=user)
        content = resolve(read(report.text), report=report)
        problems = [block.message for block in content.blocks.values() if isinstance(block, ProblemBlock)]
        assert [problem for problem in problems if "has not been drawn yet" not in problem] == []
        return imported.document, content, experiment, text.decode()

    return write


def cells(block: TableBlock) -> list[list[str]]:
    return [[text.text for text in row] for row in block.rows]


def printed(table: Table) -> list[list[str]]:
    """The cells of a table as its document prints them, without rows that are blank throughout."""
    return [[cell.text for cell in row] for row in table.rows if any(cell.text for cell in row)]


def tables_of(content: Content) -> list[TableBlock]:
    return [block for _, block in content.tables()]


def test_a_case_shows_its_configuration_and_its_result(written: Callable[[str, str], Written]) -> None:
    _, content, _, text = written("000", "case")

    (config,) = [block for block in content.blocks.values() if isinstance(block, CodeBlock)]
    inside = re.search(r"(?s)code-block:: json\n\n(.*?)\n\n\w", text)
    assert inside is not None
    assert json.loads(config.text) == json.loads(inside[1])
    values = {source: block.text for source, block in content.blocks.items() if isinstance(block, ValueBlock)}
    expected = dict(re.findall(r"(?m)^- `*(batch size|max seq len|avg_step_fps)`* = (\S+)$", text))
    shown = {name.replace("_", " "): values[f"value figure.{name} run=1"] for name in ("batch_size", "max_seq_len")}
    assert shown | {"avg_step_fps": values["value figure.avg_step_fps run=1"]} == expected


def test_two_schedules_are_two_tables_of_networks_and_micro_batches(written: Callable[[str, str], Written]) -> None:
    document, content, _, _ = written("001", "schedules")

    assert [cells(block) for block in tables_of(content)] == [printed(table) for table in document.tables]
    assert [text.text for text in tables_of(content)[0].header] == ["Network setting", "1", "2", "4"]
    assert tables_of(content)[0].spanning == "Micro batch size"
    values = [block.text for block in content.in_order() if isinstance(block, ValueBlock)]
    assert values[0] == "OOM"
    assert values[1].startswith("Fail due to running out of DRAM")


def test_a_page_per_size_holds_arguments_memory_and_timers(written: Callable[[str, str], Written]) -> None:
    _, content, _, text = written("002", "scaling")

    overview, *pages = tables_of(content)
    assert [row[0] for row in cells(overview)] == ["1", "2", "3", "4", "5", "6"]
    printed = [re.findall(pattern, text) for pattern in (r"GPU util: ~?(\d+)~?%", r"([\d.]+) ms per sample")]
    titles = [text.text for text in overview.header]
    assert [row[titles.index("GPU util %")] for row in cells(overview)] == [f"{int(v)}" for v in printed[0]]
    assert [row[titles.index("ms per sample")] for row in cells(overview)] == [f"{float(v):.2f}" for v in printed[1]]
    memory = [re.findall(r"(\d+)MiB", line) for line in re.findall(r"GPU mem: .*", text)]
    assert [row[titles.index("Peak memory (MiB)")] for row in cells(overview)] == [sizes[-2] for sizes in memory]
    least = [sizes[0] if len(sizes) > 2 else DASH for sizes in memory]
    assert [row[titles.index("Minimum memory (MiB)")] for row in cells(overview)] == least
    totals = [value for source, value in content.blocks.items() if source.startswith("value memory_total_bytes")]
    assert [getattr(value, "text", "").partition(SPACE)[0] for value in totals] == [sizes[-1] for sizes in memory]
    timers = [block for block in pages if block.header[0].text == "Timer"]
    for block, line in zip(timers, re.findall(r"(?m)^time \(ms\) \| (.*)$", text), strict=True):
        assert dict(cells(block)) == dict(part.strip().split(": ") for part in line.split("|"))
    arguments = [block for block in pages if block.header[0].text == "Argument"]
    for block, part in zip(arguments, re.findall(r"(?s)- arguments -+\n(.*?)\n-+ end of", text), strict=True):
        shown = dict(cells(block))
        for line in part.splitlines():
            name, value = re.split(r" \.+ ", line.strip(), maxsplit=1)
            assert shown[name] == value, name


def test_the_scaling_table_of_published_models(written: Callable[[str, str], Written]) -> None:
    document, content, _, _ = written("003", "published")

    (block,) = tables_of(content)
    assert cells(block) == printed(document.tables[0])


def test_a_comparison_and_the_tuning_spaces_with_their_sum(written: Callable[[str, str], Written]) -> None:
    document, content, _, _ = written("004", "autotuning")

    compared, spaces = tables_of(content)
    assert cells(compared) == printed(document.tables[0])
    assert cells(spaces) == printed(document.tables[1])


def test_measured_runs_take_the_shape_of_the_published_tables(
    make_config: Callable[..., Config], make_attempt: Callable[..., Attempt], user: User
) -> None:
    """The sweep of the second document, as parlab's own runs would leave it: its own axes, its own seconds."""
    tables = re.findall(r"(?m)^\| (d.*?) \|$", next(SEEDS.glob("001_*")).read_text())
    rows = [[part.strip() for part in line.split("|")] for line in tables]
    networks = [row[0] for row in rows[:4]]
    axes: dict[str, list[Any]] = {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]}
    config = make_config(sweep=axes)
    for number, row in enumerate(rows):
        for micro, cell in zip(axes["train.micro_batch_size"], row[1:], strict=True):
            schedule = axes["parallel.schedule"][number // 4]
            point = {"parallel.schedule": schedule, "network": row[0], "train.micro_batch_size": micro}
            finish(make_attempt(config=config, point=point), float(cell.removesuffix(" s")), point=point)
    runs = experiment_runs(config.experiment, experiment_versions(config.experiment, ""))
    text = TEMPLATES["schedules"].text("", run_records(runs)).replace("decimals=printed", "decimals=2")
    report = report_create(title="Measured", text=text, experiment=config.experiment, user=user)

    content = resolve(read(report.text), report=report)

    assert len(networks) == len(set(networks)) == 4
    shown = [row for block in tables_of(content) for row in cells(block)]
    assert [[text.replace("\N{NARROW NO-BREAK SPACE}", " ") for text in row] for row in shown] == rows
