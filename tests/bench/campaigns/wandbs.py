"""Scripts with the unmodified client of W&B against a server of ours: how many of them end as they should."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from django.contrib.auth import get_user_model

from parlab.client.http import Connection
from parlab.embedded import free_port
from parlab.lab.models import Attempt, InboxItem, Run, TrackedRun, WandbArtifact, WandbRun
from parlab.lab.services.access.tokens import token_create
from parlab.series import log, store
from tests.bench import ROOT
from tests.bench.client import is_up
from tests.bench.result import Result, Scale

SCRIPTS = Path(__file__).with_name("wandb_scripts.py")
# Prints the seconds of `init`, the microseconds of a call of `log`, and the seconds of `finish`.
CALLS = """
import sys, time
import wandb
began = time.perf_counter()
run = wandb.init(project="wandb calls", mode=sys.argv[1], settings=wandb.Settings(silent=True))
ready = time.perf_counter()
for step in range(int(sys.argv[2])):
    run.log({f"train/metric_{number}": step * 1.2345678 for number in range(10)})
done = time.perf_counter()
run.finish()
print(ready - began, 1e6 * (done - ready) / int(sys.argv[2]), time.perf_counter() - done)
"""
LIMIT_S = 180
FAILING = {"failing": 1, "interrupted": None}
"""Scripts that are to fail, with their exit codes; None: any."""


class Served(NamedTuple):
    """A server that can be killed and started again."""

    url: str
    token: str


class Stored(NamedTuple):
    """What a project holds."""

    project: str

    def run(self, run_id: str) -> TrackedRun:
        """Return the only run of this ID."""
        return WandbRun.objects.select_related("tracked__run").get(experiment__name=self.project, run_id=run_id).tracked

    def attempt(self, run_id: str) -> Attempt:
        return self.run(run_id).run.current_attempt()

    def values(self, run_id: str, metric: str, rank: int = 0) -> list[float]:
        return [float(value) for value in store.read(self.attempt(run_id).pk, metric, rank=rank).values]

    def lines(self, run_id: str) -> list[str]:
        text = b"".join(log.read_log(self.attempt(run_id).pk)).decode()
        return [line for line in text.splitlines() if not line.startswith('{"parlab":1,')]

    def parameters(self, run_id: str) -> dict[str, str]:
        return dict(self.run(run_id).parameters.values_list("key", "value"))

    def state(self, run_id: str) -> str:
        return str(self.run(run_id).run.state)


def scenarios_right(scale: Scale) -> Result:
    """Run every script and count those that end as they should, with what they report stored once."""
    names = ["live", "resume_allow"] if scale.is_quick else list(CHECKS)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="parlab-wandb-") as directory, server_process() as (served, restart):
        for name in names:
            problem = problem_of(name, served, restart, Path(directory))
            if problem:
                wrong.append(name)
                print(f"  {name}: {problem}", file=sys.stderr, flush=True)
    return Result(len(names) - len(wrong), f"{len(names)} scenarios; wrong: {', '.join(wrong) or 'none'}", 1)


def script_ratio(scale: Scale) -> Result:
    """Compare what `log` costs a script in the client's offline mode and against our server."""
    modes: dict[str, list[list[float]]] = {"offline": [], "online": []}
    with tempfile.TemporaryDirectory(prefix="parlab-wandb-") as directory, server_process() as (served, _):
        for _ in range(scale.repeats(5)):
            for mode, times in modes.items():
                command = [sys.executable, "-c", CALLS, mode, str(scale.of(2_000))]
                done = subprocess.run(
                    command, cwd=directory, env=_variables(served, Path(directory)), capture_output=True, text=True,
                    check=True,
                )  # fmt: skip
                times.append([float(text) for text in done.stdout.split()])
    offline, online = ([median(part) for part in zip(*times, strict=True)] for times in modes.values())
    text = (
        f"log {online[1]:.0f} us, offline {offline[1]:.0f} us; init {online[0]:.2f} s, offline {offline[0]:.2f} s;"
        f" finish {online[2]:.2f} s, offline {offline[2]:.2f} s"
    )
    return Result.comparison(offline[1] / online[1], text, len(modes["online"]))


def problem_of(name: str, served: Served, restart: Callable[[], None], directory: Path) -> str:
    """Run a script; return what is wrong with its end, its output or what is stored, empty for nothing."""
    project = f"wandb {name} {time.time():.0f}"
    folder = directory / name
    folder.mkdir()
    command = [sys.executable, str(SCRIPTS), name, project]
    process = subprocess.Popen(
        command, cwd=folder, env=_variables(served, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if name == "server_killed":
        _wait_for_file(folder / "kill-the-server", process)
        restart()
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"not finished after {LIMIT_S} s: {process.communicate()[0][-500:]}"
    expected = FAILING.get(name, 0)
    if expected is not None and process.returncode != expected:
        return f"exit code {process.returncode}: {output[-500:]}"
    try:
        wrong = CHECKS[name](Stored(project))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if not wrong else f"stored: {wrong}"


def _wait_for_file(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a script has made a file, or has ended."""
    until = time.monotonic() + LIMIT_S
    while not path.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


def _variables(served: Served, folder: Path) -> dict[str, str]:
    places = {name: str(folder) for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR")}
    quiet = {"WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ, **places, **quiet, "PATH": path, "PYTHONPATH": str(ROOT), "WANDB_BASE_URL": served.url,
        "WANDB_API_KEY": served.token,
    }  # fmt: skip


@contextmanager
def server_process() -> Iterator[tuple[Served, Callable[[], None]]]:
    """Start a server; yields it, and a call that kills it and starts it again at the same address."""
    user, _ = get_user_model().objects.get_or_create(username="bench-wandb", is_superuser=True)
    token, secret = token_create(user=user, name=f"bench {time.time()}", by=user)
    port = free_port()
    served = Served(f"http://127.0.0.1:{port}", secret)
    command = [sys.executable, "-m", "uvicorn", "parlab.asgi:application", "--port", str(port), "--log-level", "error"]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]

    def restart() -> None:
        processes[-1].kill()
        processes[-1].wait()
        time.sleep(2)
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    try:
        _wait_for(Connection(served.url, secret))
        yield served, restart
    finally:
        processes[-1].terminate()
        processes[-1].wait()
        token.delete()


def _wait_for(connection: Connection) -> None:
    until = time.monotonic() + 180
    while not is_up(connection):
        if time.monotonic() > until:
            raise RuntimeError("the server does not answer")
        time.sleep(0.2)


# --- what has to be stored -------------------------------------------------------------------------------------------


def _live(stored: Stored) -> object:
    run, parameters = stored.run("live"), stored.parameters("live")
    metrics = {info.metric for info in store.metrics(stored.attempt("live").pk)}
    return [
        name
        for name, is_right in {
            "name": run.name == "a name" and run.run.label == "a name",
            "state": stored.state("live") == "finished",
            "curve": stored.values("live", "loss") == [1 / (step + 1) for step in range(200)],
            "nested": stored.values("live", "deep.er") == [step * 2.0 for step in range(200)],
            "not finite": str(stored.values("live", "nan") + stored.values("live", "inf")) == "[nan, inf]",
            "parameters": parameters["optimizer.name"] == "adam" and parameters["text"] == "naïve ✓",
            "console": stored.lines("live") == ["first line", "progress 3"],
            "summary": run.metrics.get(key="best").value == 0.25,
            "system": any(metric.startswith("system/") for metric in metrics),
        }.items()
        if not is_right
    ]


def _config(stored: Stored) -> object:
    wanted = {"lr": "0.2", "layers": "2", "added": "true", "later": "[1,2]"}
    return stored.parameters("config") != wanted and stored.parameters("config")


def _define(stored: Stored) -> object:
    values = dict(stored.run("define").metrics.values_list("key", "value"))
    axes = stored.run("define").wandb.axes()
    return (values.get("loss.min"), axes) != (1.0, {"loss": "tokens"}) and (values, axes)


def _allow(stored: Stored) -> object:
    kept = (stored.values("allow", "loss"), stored.lines("allow"), stored.state("allow"))
    return kept != ([3, 2, 1], ["part 0", "part 1", "part 2"], "finished") and kept


def _one(run_id: str, values: list[float], stored: Stored) -> object:
    kept = (stored.values(run_id, "loss"), stored.state(run_id))
    return kept != (values, "finished") and kept


def _again(stored: Stored) -> object:
    runs = Run.objects.filter(experiment__name=stored.project).order_by("pk")
    kept = [store.read(run.current_attempt().pk, "loss", rank=0).values.tolist() for run in runs]
    return kept != [[10, 20], [11, 21]] and kept


def _labels(stored: Stored) -> object:
    tags = dict(stored.run("labels").tags.values_list("key", "value"))
    wanted = {"wandb.group": "sweep 7", "wandb.job_type": "eval", "wandb.tags": "a, b", "wandb.notes": "some notes"}
    return not wanted.items() <= tags.items() and tags


def _alert(stored: Stored) -> object:
    items = InboxItem.objects.filter(run=stored.run("alert").run, kind="run.alert")
    return [item.data["title"] for item in items] != ["Loss is high"] and list(items)


def _media(stored: Stored) -> object:
    keys = sorted(stored.run("media").values.values_list("key", flat=True))
    return keys != sorted(["picture", "histogram", "table", "text"] * 2) and keys


def _artifact(stored: Stored) -> object:
    artifact = WandbArtifact.objects.get(experiment__name=stored.project, name="data")
    paths = list(artifact.tracked.artifacts.filter(path__startswith="artifacts/data/").values_list("path", flat=True))
    return paths != ["artifacts/data/v0.manifest.json", "artifacts/data/v0/part/one.txt"] and paths


def _versions(stored: Stored) -> object:
    rows = WandbArtifact.objects.filter(experiment__name=stored.project, state="COMMITTED").order_by("version")
    return [row.aliases for row in rows] != [[], ["latest", "production"]] and [row.aliases for row in rows]


def _shared(stored: Stored) -> object:
    series = [stored.values("shared", "loss", rank) for rank in range(8)]
    wanted = [[rank * 100 + step for step in range(20)] for rank in range(8)]
    kept = (sorted(series), len(stored.lines("shared")), stored.state("shared"))
    return kept != (wanted, 8, "finished") and kept


def _offline(stored: Stored) -> object:
    kept = (stored.values("offline", "loss"), stored.parameters("offline"), stored.state("offline"))
    return kept != ([float(step) for step in range(50)], {"a": "1"}, "finished") and kept


def _reads(stored: Stored) -> object:
    count = Run.objects.filter(experiment__name=stored.project).count()
    return count != 3 and count


def _changes(stored: Stored) -> object:
    kept = (stored.run("change").name, stored.parameters("change"), stored.state("change"))
    return kept != ("another name", {"found": "later"}, "finished") and kept


def _failing(stored: Stored) -> object:
    attempt = stored.attempt("failing")
    is_said = any("this script fails" in line for line in stored.lines("failing"))
    return (attempt.state, attempt.exit_code, is_said) != ("failed", 1, True) and (attempt.state, attempt.exit_code)


def _interrupted(stored: Stored) -> object:
    return stored.state("interrupted") != "cancelled" and stored.state("interrupted")


def _killed(stored: Stored) -> object:
    values = stored.values("killed", "loss")
    return values != [float(step) for step in range(len(values))] and values[:5]


def _server_killed(stored: Stored) -> object:
    values, lines = stored.values("server-killed", "loss"), stored.lines("server-killed")
    wanted = [f"line {step}" for step in range(0, 400, 50)]
    is_right = values == [float(step) for step in range(400)] and lines == wanted
    return not is_right and (len(values), lines)


def _many(stored: Stored) -> object:
    names = {info.metric: info.points for info in store.metrics(stored.attempt("many").pk)}
    return names != {f"layer/{number}": 20 for number in range(1_000)} and len(names)


def _trainer(run_id: str, metric: str, count: int, stored: Stored) -> object:
    kept = (len(stored.values(run_id, metric)), stored.state(run_id))
    return kept != (count, "finished") and kept


def _torchtitan(stored: Stored) -> object:
    tracked = WandbRun.objects.get(experiment__name=stored.project).tracked
    attempt = tracked.run.current_attempt()
    series = {info.metric: info.points for info in store.metrics(attempt.pk)}
    kept = (series.get("throughput(tps)"), series.get("validation_metrics/loss"), attempt.state)
    parameters = dict(tracked.parameters.values_list("key", "value"))
    is_right = kept == (3, 3, "finished") and parameters.get("training.local_batch_size") == "8"
    return not is_right and (kept, parameters)


def _verl(stored: Stored) -> object:
    run_id = f"{stored.project}--grpo-7b".replace(" ", "-")
    tables = stored.run(run_id).values.filter(key="val/generations").count()
    kept = (stored.values(run_id, "critic/score/mean"), tables, stored.run(run_id).name, stored.state(run_id))
    return kept != ([0.25, 0.5, 0.75], 3, "grpo-7b", "finished") and kept


CHECKS: Mapping[str, Callable[[Stored], object]] = {
    "live": _live,
    "config_update": _config,
    "define_metric": _define,
    "resume_allow": _allow,
    "resume_must": partial(_one, "must", [1.0]),
    "resume_never": partial(_one, "never", [1.0]),
    "started_again": _again,
    "labels": _labels,
    "alert": _alert,
    "media": _media,
    "artifact": _artifact,
    "artifact_versions": _versions,
    "shared": _shared,
    "offline_sync": _offline,
    "api_reads": _reads,
    "api_changes": _changes,
    "failing": _failing,
    "interrupted": _interrupted,
    "killed": _killed,
    "server_killed": _server_killed,
    "not_served": partial(_one, "not-served", [1.0, 2.0]),
    "many_metrics": _many,
    "lightning_logger": partial(_trainer, "lightning", "train_loss", 3),
    "hugging_face": partial(_trainer, "hugging-face", "train/loss", 3),
    "accelerate_tracker": partial(_trainer, "accelerate", "train/loss", 3),
    "torchtitan_logger": _torchtitan,
    "verl_tracking": _verl,
}
"""Scripts, and what is wrong with what they have stored: nothing if it is false."""
