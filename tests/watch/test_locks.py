"""Bisection between two lock files: the locks between them, their environments, and a real search."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Run
from parlab.watch import services
from parlab.watch.bisecting import bisect_cost, bisect_locks_start, bisect_switch, steps_of
from parlab.watch.detecting import watch_detect
from parlab.watch.locks import read_lock, steps_between, with_lock
from parlab.watch.models import Alert, Bisect, Watch
from runners.wire.protocol import RunState
from tests.watch.conftest import history, repeats

AT_COMMIT = Path(settings.BASE_DIR) / "runners" / "at_commit.py"
GOOD, BAD = "fast-part==1.0\nplain==1.0\nslow_part==1.0", "fast-part==2.0\nplain==2.0\nslow_part==2.0"


def test_a_lock_file_is_read_with_its_hashes_comments_and_options() -> None:
    text = """# by pip-compile
--index-url https://example.org/simple
NumPy==2.4.6 \\
    --hash=sha256:abc \\
    --hash=sha256:def
    # via -r requirements.in
torch[extra]==2.13.0+cpu ; python_version >= "3.9"
"""
    assert read_lock(text, "good lock") == {"numpy": "2.4.6", "torch": "2.13.0+cpu"}


def test_the_locks_between_two_files_differ_by_one_package_each() -> None:
    steps = steps_between("a==1\nb==1\nc==1", "a==1\nb==2\nd==1")
    assert [step.pins for step in steps] == ["a==1 b==1 c==1", "a==1 b==2 c==1", "a==1 b==2", "a==1 b==2 d==1"]
    assert [step.subject for step in steps[1:]] == ["b 1 -> 2", "c 1 -> none", "d none -> 1"]
    assert len({step.sha for step in steps}) == 4


@pytest.mark.parametrize(
    ("good", "bad", "problem"),
    [
        ("", "a==1", "good lock has no pins; use lines such as"),
        ("a==1", "a>=1", "bad lock: a>=1 pins no version|bad lock: 'a>=1' pins no version"),
        ("a==1", "a==1", "both lock files pin the same versions"),
        ("a==1", "\n".join(f"package-{number}==1.0" for number in range(2_000)), "characters of pins; leave out"),
    ],
)
def test_lock_files_that_cannot_be_searched_are_refused_with_the_remedy(good: str, bad: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        steps_between(good, bad)


def test_a_command_that_installs_no_lock_is_refused() -> None:
    own = {"command": {"argv": ["/python", "at_commit.py", "--pip", "", "--commit", "main"]}}
    assert with_lock(own, "a==1")["command"]["argv"][-2:] == ["--lock", "a==1"]
    assert with_lock(with_lock(own, "a==1"), "a==2")["command"]["argv"][-2:] == ["--lock", "a==2"]
    with pytest.raises(ValueError, match=r"command\.argv installs no lock; use runners/at_commit\.py with --pip"):
        with_lock({"command": {"argv": ["/python", "train.py"]}}, "a==1")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--lock", "a==1", "--run", "rm"], "--run follows --commit or --lock"),
        (["--commit", "main", "--pip", "--index-url http://elsewhere"], "--pip follows --commit or --lock"),
        (["--lock", "a==1", "--lock", "b==1"], "--lock follows --commit or --lock"),
        (["--lock", "a==1"], "--lock needs --pip"),
        (["--pip", "", "--lock", "-r file"], "is no pinned package"),
    ],
)
def test_what_the_administrator_has_not_allowed_cannot_follow_the_command(more: list[str], problem: str) -> None:
    argv = [sys.executable, str(AT_COMMIT), "--run", "python train.py", *more]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert problem in done.stderr


def wheel(directory: Path, name: str, version: str, code: str) -> None:
    """Write a wheel with one module, without any build tool."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


# Each part says how long it works, with a little noise: the clock of a machine that runs other tests would decide.
TRAINING = """
import json, random
import fast_part, plain, slow_part
for step in range(1, 9):
    time = sum(part.work() for part in (fast_part, plain, slow_part)) * random.gauss(1.0, 0.01)
    print(json.dumps({"step": step, "time": time}))
"""


@pytest.fixture
def watch(make_config: Callable[..., Config], user: User, tmp_path: Path) -> Watch:
    """A watch without a repository whose command runs a script with the packages of a lock."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name, seconds in (("fast_part", (0.01, 0.01)), ("plain", (0.01, 0.01)), ("slow_part", (0.01, 0.08))):
        for version, time in zip(("1.0", "2.0"), seconds, strict=True):
            wheel(packages, name, version, f"def work():\n    return {time}\n")
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    argv = [sys.executable, str(AT_COMMIT), "--cache", str(tmp_path / "cache"), "--run", f"python {script}"]
    argv += ["--pip", f"--no-index --find-links {packages}", "--lock", " ".join(GOOD.split())]
    data = {"parallel": {"engine": "command"}, "command": {"argv": argv}, "launcher": {"kind": "plain"}}
    watch = services.watch_create(name="Stack", user=user, config=make_config(data=data))
    history(watch, [*repeats(20), *repeats(5, level=0.2, seed=2)])
    (alert,) = watch_detect(watch=watch)
    assert alert.is_worse
    return watch


def execute_all() -> list[str]:
    """Run the commands of all active runs here, as a node would; return their outputs."""
    outputs = []
    for run in Run.objects.active().select_related("config"):
        began = timezone.now()
        argv = run.config.data["command"]["argv"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        times = [json.loads(line)["time"] for line in done.stdout.splitlines() if line.startswith("{")]
        attempt = Attempt.objects.filter(run=run, number=run.attempt_number)
        summary: dict[str, Any] = {"step_time_s": {"median": median(times)}}
        attempt.update(state=RunState.FINISHED, summary=summary, started_at=began, ended_at=timezone.now())
        Run.objects.filter(pk=run.pk).update(state=RunState.FINISHED, summary=summary)
        outputs.append(done.stdout)
    return outputs


@pytest.mark.slow
@pytest.mark.usefixtures("redis_url")
def test_a_search_between_two_locks_installs_runs_and_names_the_package(watch: Watch, user: User) -> None:
    alert = Alert.objects.get()
    cost = bisect_cost(alert, GOOD, BAD)
    assert (cost.commits, cost.steps, cost.runs) == (3, 2, 12)
    bisect = bisect_locks_start(alert=alert, user=user, good_lock=GOOD, bad_lock=BAD)
    assert bisect_locks_start(alert=alert, user=user, good_lock=GOOD, bad_lock=BAD) == bisect
    before = [series.digest for series in watch.series.all()]
    for number in range(60):
        if number == 3:  # a pause ends nothing
            assert bisect_switch(bisect=bisect, state=Bisect.State.PAUSED)
            services.watch_advance(watch=watch)
            assert bisect_switch(bisect=bisect, state=Bisect.State.RUNNING)
        services.watch_advance(watch=watch)
        execute_all()
        bisect.refresh_from_db()
        if bisect.state != Bisect.State.RUNNING:
            break
    assert bisect.state == Bisect.State.DONE, bisect.reason
    assert "slow-part 1.0 -> 2.0" in bisect.reason
    assert {step.verdict for step in steps_of(bisect)} == {"good", "bad"}
    assert all(step.results >= 3 for step in steps_of(bisect))
    measured = watch.results.exclude(lock="")
    assert {result.lock for result in measured} <= {step.sha for step in steps_between(GOOD, BAD)}
    assert [series.digest for series in watch.series.all()] == before, "the runs of a search belong to no series"
    assert watch.alerts.count() == 1


def test_the_page_states_the_cost_before_it_starts(watch: Watch, page: Client) -> None:
    address = Alert.objects.get().get_absolute_url()
    assert "Between two lock files" in page.get(address).content.decode()
    text = page.post(f"{address}bisect/estimate/", {"good_lock": GOOD, "bad_lock": BAD}).content.decode()
    assert "3 packages differ: about 2 steps, 12 or more runs" in text
    assert not Bisect.objects.exists()
    refused = page.post(f"{address}bisect/estimate/", {"good_lock": GOOD, "bad_lock": "x"}, follow=True)
    assert "pins no version" in refused.content.decode()
    text = page.post(f"{address}bisect/start/", {"good_lock": GOOD, "bad_lock": BAD}, follow=True).content.decode()
    assert "Bisection started" in text
    assert Bisect.objects.get().bad_lock == BAD
