"""The table of engines is the only place that decides what an engine is, and one row and one module add an engine."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import pytest

from parlab.lab.forms.config_layout import unused_fields
from runners.config import ENGINES, RunConfig, check, engine_of, field_names, sections, with_values
from runners.config.devices import DEVICES
from runners.config.engines import PLAIN
from runners.config.launchers import LAUNCHERS
from tests.conftest import SMALL
from tests.patience import TRAINING_S
from tests.runners.conftest import ROOT, NodeMachine, Server
from tests.runners.toy_engine import TOY

TOY_DATA = SMALL | {"parallel": {"engine": TOY.name, "data_parallel_size": 2}}

# Files in which names of engines are values that people chose, not decisions about engines.
CHOICES = ("parlab/demo/", "parlab/lab/forms/presets.py")
# Files that read the text of other programs, in which the same words have other meanings.
FOREIGN_WORDS = (
    "parlab/formats/", "parlab/planner/publications/rows.py", "parlab/planner/job/imported_jobs.py",
    "parlab/planner/job/code_bases.py",
)  # fmt: skip
# Values of sharding.mode, two of which are spelled like engines.
MODES = {
    "runners/config/sections.py": "('sharding', 'pipeline', 'hybrid')",
    "runners/config/engine_rules.py": "sharding.mode == ",
}


def sources() -> Iterator[tuple[str, ast.AST]]:
    """Parse every file of the server and of the node that holds the name of an engine, a launcher or a device."""
    names = re.compile("|".join(rf"""["']{name}["']""" for name in (*ENGINES, *LAUNCHERS, *DEVICES)))
    for file in sorted([*(ROOT / "parlab").rglob("*.py"), *(ROOT / "runners").rglob("*.py")]):
        if names.search(text := file.read_text()):
            yield str(file.relative_to(ROOT)), ast.parse(text)


def own_module(path: str) -> str | None:
    """Return the engine whose module a file is: zero_settings.py belongs to zero."""
    name = path.removeprefix("runners/engines/").removesuffix(".py")
    owners = [engine for engine in ENGINES if name == engine or name.startswith(f"{engine}_")]
    return owners[0] if owners and path.startswith("runners/engines/") else None


def engine_literals(node: ast.AST, names: set[str]) -> list[str]:
    """List the engines that stand as literals in a place where a program decides by or chooses an engine."""

    def is_name(child: ast.AST | None) -> bool:
        return isinstance(child, ast.Constant) and child.value in names

    def listed(children: list[ast.expr]) -> list[ast.expr]:
        """Several engines beside each other, or nothing but engines, are a list of engines."""
        engines = [child for child in children if is_name(child)]
        return engines if len(engines) > 1 or (engines and len(engines) == len(children)) else []

    literals: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        is_lookup = isinstance(node.ops[0], ast.In | ast.NotIn) and "engine" not in ast.unparse(node.comparators[0])
        literals = [side for side in sides[1 if is_lookup else 0 :] if is_name(side)]
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        literals = listed(node.elts)
    elif isinstance(node, ast.Call):
        literals = [keyword.value for keyword in node.keywords if keyword.arg == "engine" and is_name(keyword.value)]
        literals += [child for child in node.args if is_name(child)] if len(listed(node.args)) > 1 else []
        literals += [child for child in node.args[:1] if is_name(child) and ast.unparse(node.func).endswith("start")]
    elif isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        literals = listed(keys) if len(keys) > 1 and len(listed(keys)) == len(keys) else []
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and str(key.value).rpartition(".")[2] == "engine" and is_name(value):
                literals.append(value)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and is_name(node.value):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        literals = [node.value for target in targets if node.value and "engine" in ast.unparse(target).lower()]
    return [str(literal.value) for literal in literals if isinstance(literal, ast.Constant)]


def misplaced(path: str, tree: ast.AST, names: set[str]) -> Iterator[str]:
    own = own_module(path)
    for node in ast.walk(tree):
        literals = [name for name in engine_literals(node, names) if name != own]
        text = ast.unparse(node) if literals else ""
        if literals and not (path in MODES and text.startswith(MODES[path])):
            yield f"{path}:{getattr(node, 'lineno', 0)}: {', '.join(literals)} in {text[:80]}"


class Scan(NamedTuple):
    """What the tests of this module look for in the whole tree."""

    misplaced: list[str]
    """Literals of engines where they decide something."""
    compared: list[tuple[str, str, set[str]]]
    """File, text and literals of each comparison with a launcher or a device."""


@pytest.fixture(scope="module")
def tree() -> Scan:
    """The tree, read once."""
    scan = Scan([], [])
    for path, module in sources():
        if path != "runners/config/engines.py" and not path.startswith((*CHOICES, *FOREIGN_WORDS)):
            scan.misplaced.extend(misplaced(path, module, set(ENGINES)))
        for node in ast.walk(module):
            if isinstance(node, ast.Compare) and {*LAUNCHERS, *DEVICES} & (literals := set(literals_in(node))):
                scan.compared.append((path, ast.unparse(node), literals))
    return scan


def test_names_of_engines_are_literals_only_in_the_table_and_in_the_modules_of_the_engines(tree: Scan) -> None:
    assert tree.misplaced == [], "ask runners.config.engines for these instead"


@pytest.mark.parametrize(
    "code",
    [
        "if run.engine == 'zero': pass",
        "if engine in ('zero', None, 'hf'): pass",
        "if engine not in ['zero']: pass",
        "if 'zero' in engines: pass",
        "ONLY = ('command',)",
        "TITLES = {'zero': 1, 'capacity': 2}",
        "data = {'parallel': {'engine': 'sharding'}}",
        "data = {'parallel.engine': 'pipeline'}",
        "run(engine='allreduce')",
        "choice('Engine', 'pipeline', 'zero')",
        "data['engine'] = 'zero'",
        "ENGINE = 'megatron'",
        "start('hf', run)",
    ],
)
def test_a_literal_that_decides_by_an_engine_is_reported(code: str) -> None:
    assert list(misplaced("parlab/pages/some.py", ast.parse(code), set(ENGINES)))


@pytest.mark.parametrize(
    "code",
    [
        "data = {'capacity': {'find': 'num_layers'}, 'cluster': {}}",
        "section = run.resolved['capacity']",
        "Sizes(pipeline=get('pipeline'))",
        "names = ('gpus', 'pipeline', 'tensor')",
        "if 'sharding' in sections: pass",
    ],
)
def test_a_section_or_a_word_that_is_spelled_like_an_engine_is_not_reported(code: str) -> None:
    assert not list(misplaced("parlab/pages/some.py", ast.parse(code), set(ENGINES)))


@pytest.mark.parametrize(
    ("names", "subject"), [(set(LAUNCHERS), r"\b(launcher|kind)\b"), (set(DEVICES), r"\bdevice\b(?!\.type)")]
)
def test_launchers_and_devices_are_compared_with_no_literal(names: set[str], subject: str, tree: Scan) -> None:
    own = [(path, text) for path, text, literals in tree.compared if names & literals]
    places = [f"{path}: {text}" for path, text in own if re.search(subject, text)]
    assert places == [], "ask runners.config.launchers or runners.config.devices for these instead"


def literals_in(node: ast.Compare) -> list[str]:
    return [child.value for child in ast.walk(node) if isinstance(child, ast.Constant) and isinstance(child.value, str)]


def test_every_row_names_existing_modules_sections_fields_and_engines() -> None:
    fields = set(field_names())
    for name, row in ENGINES.items():
        assert row.name == name
        assert importlib.util.find_spec(row.module) is not None
        assert row.purpose
        assert set(row.sections) <= set(sections())
        assert {*row.fields, *row.ignores, *(row.reads_only or ()), *row.supports} <= fields
        assert row.trial_engine in {"", *ENGINES}


def test_every_engine_is_described_in_the_documentation() -> None:
    text = (ROOT / "docs/understand/engines.md").read_text()
    assert [name for name in ENGINES if f"| `{name}` |" not in text] == []


def test_every_combination_that_a_row_supports_is_one_that_the_schema_knows() -> None:
    for row in ENGINES.values():
        for field, values in row.supported_values.items():
            section, _, name = field.partition(".")
            schema = sections()[section].model_json_schema()["properties"][name]
            assert set(values) <= set(schema.get("enum", values))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, TOY.name, TOY)


@pytest.mark.usefixtures("toy")
def test_a_new_row_is_enough_for_the_server_to_offer_check_and_lay_out_an_engine() -> None:
    config, problems = check(TOY_DATA)
    assert config is not None, problems
    assert engine_of(config.resolved()) is TOY
    assert TOY.name in RunConfig.model_json_schema()["$defs"]["ParallelSection"]["properties"]["engine"]["enum"]
    unused = unused_fields(config.resolved())
    assert {"parallel.schedule", "sharding.mode", "parallel.tensor_parallel_size"} <= unused
    assert "train.log_interval" not in unused
    _, problems = check(TOY_DATA | {"parallel": {"engine": TOY.name, "tensor_parallel_size": 2}})
    assert "engine toy does not support tensor_parallel_size 2; use 1" in str(problems)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train.precision", "fp8"),
        ("train.recompute", "full"),
        ("train.gradient_clipping", 1.0),
        ("model.kind", "bert"),
        ("model.attention_mask", "prefix"),
        ("parallel.schedule", "dualpipe"),
        ("parallel.pipeline_parallel_size", 2),
        ("parallel.zero_stage", 1),
    ],
)
def test_a_row_that_adds_nothing_supports_the_plain_case_only(field: str, value: Any) -> None:
    _, problems = check(with_values(TOY_DATA, {field: value}))
    assert f"engine toy does not support {field.partition('.')[2]} {value}; use" in str(problems)


def test_a_row_adds_only_what_is_not_plain() -> None:
    for row in ENGINES.values():
        assert [field for field, values in row.supports.items() if PLAIN.get(field) == values] == []


def test_a_name_that_no_row_has_is_an_invalid_value() -> None:
    _, problems = check(TOY_DATA)
    assert [problem.field for problem in problems] == ["parallel.engine"]
    assert all(name in problems[0].message for name in ENGINES)


@pytest.mark.slow
def test_a_new_row_and_module_are_enough_for_a_node_to_launch_an_engine(machine: NodeMachine, server: Server) -> None:
    machine.start_daemon("tests.runners.toy_node")
    server.start(1, config=TOY_DATA)
    report = server.end_of(1, within_s=TRAINING_S)
    assert report.state == "finished", (report, server.output[1, 1])
    events = [json.loads(line) for line in server.lines(1) if line.startswith(b'{"parlab"')]
    assert {event["engine"] for event in events if event["event"] == "start"} == {TOY.name}
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert losses == [3.0] * 2 * SMALL["train"]["iterations"]


def test_the_files_of_a_configuration_import_each_other_one_way() -> None:
    graph = {}
    for file in (ROOT / "runners/config").glob("*.py"):
        imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        # `from . import engines` names the files itself.
        graph[file.stem] = {
            name
            for node in imports
            if node.level == 1
            for name in ([node.module] if node.module else [alias.name for alias in node.names])
        }
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("engines") < order.index("sections") < order.index("rules") < order.index("run")
