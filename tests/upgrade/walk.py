"""One upgrade: an earlier release with data and a run that trains, then this release, then the node."""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from parlab.client.http import Connection, Refused
from tests.faults import ticker
from tests.patience import wait_for
from tests.upgrade.release import ROOT, extract
from tests.upgrade.stand import Stand, upload

RANKS = 2
LOG = ROOT / "tests/formats/megatron/bridge.log"
EXPERIMENT = "/api/experiments/upgrade/"
RUN = f"{EXPERIMENT}runs/1/"
BYTES = bytes(range(256)) * 1_000
FEW = 4
"""Steps that must arrive in each part of the upgrade."""


class Upgrade(NamedTuple):
    """What an upgrade has shown."""

    revision: str
    migrations: list[str]
    """Those that this release applied."""
    steps: list[int]
    """Steps of the run that were stored before the upgrade, with the old node, with the new node, and in the end."""
    downtime_s: float


def upgrade(revision: str, directory: Path, *, has_postgres: bool = False) -> Upgrade:
    """Upgrade a server and its node, in this order, while a run trains. Raises AssertionError for any loss."""
    old = extract(revision, directory / "old")
    witness = directory / "witness"
    witness.mkdir()
    command = [sys.executable, str(Path(ticker.__file__)), str(RANKS), str(witness)]
    with _stand(directory / "stand", has_postgres) as stand:
        stand.allow(command)
        stand.manage(old, "migrate", "--verbosity", "0")
        api = stand.connection(old)
        stand.start_server(old, api)
        stand.start_node(old)
        imported = upload(api, LOG)
        script = _Script(stand)
        script.store()
        _launch(api, command)
        steps = [_more(api, 0)]
        before = _all(api, imported)

        begin = time.monotonic()
        stand.end_server()
        migrations = stand.manage(ROOT, "migrate", "--no-color")
        stand.start_server(ROOT, api)
        downtime_s = time.monotonic() - begin
        _compare(before, _all(api, imported))
        assert script.read() == BYTES, "an artifact has changed"
        # Where the messages themselves have changed, the steps arrive once the node is upgraded too.
        steps.append(_more(api, steps[-1], or_else=stand.refuses_node))

        stand.drain_node(old)
        stand.start_node(ROOT)
        steps.append(_more(api, steps[-1]))
        api.json("POST", f"{RUN}cancel/")
        wait_for(lambda: api.json("GET", RUN)["state"] == "cancelled", "the run is cancelled")
        steps.append(_check_steps(api, witness))
    applied = [line.split()[1].rstrip(".") for line in migrations.splitlines() if line.endswith("OK")]
    return Upgrade(revision, applied, steps, downtime_s)


@contextmanager
def _stand(directory: Path, has_postgres: bool) -> Iterator[Stand]:
    stand = Stand(directory, has_postgres=has_postgres)
    try:
        yield stand
    except BaseException:
        sys.stderr.write(stand.log())
        raise
    finally:
        stand.close(ROOT)


class _Script:
    """A script that reports over MLflow's addresses, as the first user."""

    def __init__(self, stand: Stand) -> None:
        self._connection = Connection(f"http://127.0.0.1:{stand.web_port}", "")
        self._login = f"Basic {b64encode(b'ada:correct horse battery').decode()}"
        self.address = ""

    def _ask(self, method: str, path: str, body: bytes | None, kind: str = "application/json") -> bytes:
        headers = {"Authorization": self._login, "Content-Type": kind}
        return self._connection.request(method, f"/api/2.0/{path}", body, headers)[0]

    def store(self) -> None:
        """Store a file of a run."""
        made = json.loads(self._ask("POST", "mlflow/experiments/create", b'{"name": "reported"}'))
        of_run = json.dumps({"experiment_id": made["experiment_id"]}).encode()
        run = json.loads(self._ask("POST", "mlflow/runs/create", of_run))["run"]["info"]["run_id"]
        self.address = f"mlflow-artifacts/artifacts/{made['experiment_id']}/{run}/artifacts/weights.bin"
        self._ask("PUT", self.address, BYTES, "application/octet-stream")

    def read(self) -> bytes:
        return self._ask("GET", self.address, None)


def _launch(api: Connection, command: list[str]) -> None:
    data = {
        "parallel": {"engine": "command", "data_parallel_size": RANKS},
        "train": {"global_batch_size": RANKS, "micro_batch_size": 1},
        "command": {"argv": command},
        "launcher": {"kind": "plain", "timeout_s": 3_000},
        "cluster": {"gpus_per_node": RANKS, "device": "cpu"},
    }
    api.json("POST", "/api/experiments/", {"name": "upgrade", "question": "Does a run survive?"})
    saved = api.json("POST", f"{EXPERIMENT}configurations/", {"data": data})
    api.json("POST", f"{EXPERIMENT}launch/?digest={saved.get('digest', '')}")


def _series(api: Connection) -> list[dict[str, Any]]:
    try:
        return list(api.json("GET", f"{RUN}series/?metric=loss")["ranks"])
    except Refused:  # it has none yet
        return []


def _more(api: Connection, steps: int, or_else: Callable[[], bool] = lambda: False) -> int:
    """Wait until each rank has some steps more; return the number of the one with the fewest."""

    def arrived() -> int:
        ranks = _series(api)
        least = min((rank["total"] for rank in ranks), default=0)
        return least if or_else() or (len(ranks) == RANKS and least >= steps + FEW) else 0

    return int(wait_for(_patient(arrived), f"{FEW} steps after step {steps}"))


def _patient(condition: Callable[[], Any]) -> Callable[[], Any]:
    """Ask four times a second, as the limit of requests is for people and scripts."""

    def ask() -> Any:
        time.sleep(0.25)
        return condition()

    return ask


def _all(api: Connection, imported: str) -> dict[str, Any]:
    """Return all that the API tells of the imported experiment, and the configuration of the run."""
    base = f"/api/experiments/{imported}/"
    paths = [base, f"{EXPERIMENT}configurations/"]
    for run in api.rows(f"{base}runs/"):
        path = f"{base}runs/{run['number']}/"
        metrics = {row["metric"] for row in api.json("GET", f"{path}metrics/")["series"]}
        paths += [path, f"{path}metrics/", *(f"{path}series/?metric={metric}" for metric in metrics)]
    return {path: api.json("GET", path) for path in paths}


def _compare(old: Any, new: Any, place: str = "") -> None:
    """Require all that the old release told; a newer one may tell more."""
    if isinstance(old, dict):
        for key, value in old.items():
            assert key in new, f"{place}: {key} is missing"
            _compare(value, new[key], f"{place} {key}")
    elif isinstance(old, list):
        assert len(old) == len(new), f"{place}: {len(old)} entries became {len(new)}"
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            _compare(one, other, f"{place} {number}")
    else:
        assert old == new, f"{place}: {json.dumps(old)} became {json.dumps(new)}"


def _check_steps(api: Connection, witness: Path) -> int:
    """Require each step that was printed, once and with its value; return the number of all."""
    printed = [int((witness / f"{_attempt(witness)}-{rank}").read_text()) for rank in range(RANKS)]
    wait_for(_patient(lambda: [rank["total"] for rank in _series(api)] >= printed), "all steps are stored")
    for rank, last in zip(_series(api), printed, strict=True):
        steps = list(range(1, rank["total"] + 1))
        # The last line may have been printed before its witness was written.
        assert len(steps) - last in (0, 1), f"rank {rank['rank']} printed {last} steps, {len(steps)} are stored"
        assert rank["steps"] == steps
        assert rank["values"] == [ticker.loss_of(rank["rank"], step) for step in steps]
    return sum(rank["total"] for rank in _series(api))


def _attempt(witness: Path) -> str:
    """Return `RUN-ATTEMPT` of the only attempt."""
    [attempt] = {path.name.rpartition("-")[0] for path in witness.iterdir() if not path.suffix}
    return attempt
