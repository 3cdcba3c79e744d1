"""A node installs the extra `node` and nothing else: no Django, no server."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import KEY, NODE, ROOT

RUNNERS = ROOT / "runners"
CONTROLLER = RUNNERS / "node" / "kubernetes"
NAME = re.compile(r"[A-Za-z0-9._-]+")


def canonical(requirement: str) -> str:
    """Return the name of the distribution in a requirement."""
    match = NAME.match(requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def required(extra: str = "node") -> set[str]:
    """Names of the distributions that an extra names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {canonical(requirement) for requirement in project["optional-dependencies"][extra]}


def installed_for_a_node() -> list[str]:
    """Names of the distributions of the extra `node`, and of those that they require."""
    names, waiting = list[str](), sorted(required())
    while waiting:
        name = waiting.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        names.append(name)
        # celery[redis] requires redis, which the extra names, too.
        more = {canonical(text) for text in requirements if "extra ==" not in text}
        waiting += sorted(more - {*names, *waiting})
    return names


def imported() -> set[str]:
    """Top-level names that the code of runners and of the client imports from outside and the standard library."""
    names = set()
    for path in chain(RUNNERS.rglob("*.py"), (ROOT / "parlab" / "client").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.partition(".")[0])
    # Of parlab, a node imports the client alone (import-linter), which the package of nodes contains.
    return names - set(sys.stdlib_module_names) - {"runners", "parlab"}


def test_everything_that_runners_imports_is_in_the_extras_of_nodes_and_controllers() -> None:
    # kombu is celery's own transport and pydantic_core pydantic's: they come and go with them.
    allowed = {name.replace("-", "_") for name in required()} | {"kombu", "pydantic_core"}
    # nvidia-ml-py is imported as pynvml.
    allowed |= {"pynvml"} if "nvidia-ml-py" in required() else set()
    # A controller needs an extra of its own; urllib3 comes with the official client.
    allowed |= required("kubernetes") | {"urllib3"}
    assert imported() <= allowed
    assert "django" not in imported()
    plain = [path for path in RUNNERS.rglob("*.py") if CONTROLLER not in path.parents]
    assert not [path for path in plain if re.search(r"^\s*(import|from) kubernetes\b", path.read_text(), re.M)]


@pytest.fixture
def node_python(tmp_path: Path) -> Path:
    """A Python that sees only what a node installs, by links into the present environment."""
    venv.create(tmp_path / "venv", with_pip=False)
    site = next((tmp_path / "venv" / "lib").glob("python3*/site-packages"))
    for name in installed_for_a_node():
        distribution = metadata.distribution(name)
        for file in distribution.files or []:
            top = file.parts[0]
            source = Path(str(distribution.locate_file(top)))
            if top not in ("..", "__pycache__") and not (site / top).exists() and source.exists():
                (site / top).symlink_to(source)
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.slow
def test_the_daemon_runs_where_only_its_requirements_are_installed(
    node_python: Path, tmp_path: Path, redis_url: str
) -> None:
    django = subprocess.run([node_python, "-c", "import django"], capture_output=True)
    assert django.returncode, "this environment proves nothing: it has Django"
    package = tmp_path / "node"
    package.mkdir()
    (package / "runners").symlink_to(RUNNERS)
    (package / "parlab").mkdir()
    for name in ("__init__.py", "client"):
        (package / "parlab" / name).symlink_to(ROOT / "parlab" / name)
    environment = {"PATH": "/usr/bin:/bin", "REDIS_URL": redis_url, "PARLAB_NODE_KEY": KEY.decode()}
    log = tmp_path / "log"
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [node_python, "-m", "runners.node.daemon", "--node", NODE, "--state-dir", tmp_path / "state"],
            cwd=package,
            # Celery would load Django for this variable if it were left to its habits.
            env={**environment, "DJANGO_SETTINGS_MODULE": "parlab.settings"},
            stderr=output,
        )
    try:
        wait_for(lambda: b"takes 1 runs" in log.read_bytes() or daemon.poll() is not None, "the daemon has started")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        daemon.kill()
        daemon.wait()
    for module in ("runners.supervisor.supervise", "runners.engines.pipeline"):
        done = subprocess.run([node_python, "-m", module, "--help"], cwd=package, env=environment, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
