"""The demo sweeps: one per engine, all runnable, launched by one button."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from parlab.demo import content, slower
from parlab.demo.networks import network_sweeps, times_ms
from parlab.demo.progress import progress
from parlab.demo.sweeps import demo_sweeps
from parlab.lab.models import Attempt, Experiment, Run
from parlab.lab.services.configs import config_save
from runners.config import ENGINES, RunConfig, expand
from runners.config.engines import AUTOTUNING, HEALTH
from runners.engines.command import command_argv, read_allowed
from runners.engines.megatron_flags import read_flags

pytestmark = pytest.mark.django_db
SWEEPS = demo_sweeps(settings.BASE_DIR)


@pytest.fixture
def demo(user: User) -> list[Experiment]:
    content.ready_sweeps(user)
    return list(Experiment.objects.filter(name__in=[sweep.name for sweep in SWEEPS]))


@pytest.fixture
def browser(user: User) -> Client:
    user.is_superuser = True
    user.save()
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_every_point_of_every_sweep_is_valid(sweep: Any) -> None:
    points = expand(sweep.data, sweep.sweep)
    assert [point.problems for point in points] == [[]] * len(points)


def test_every_engine_has_a_sweep() -> None:
    engines = {
        RunConfig.model_validate(point.config.model_dump()).parallel.engine
        for sweep in SWEEPS
        for point in expand(sweep.data, sweep.sweep)
        if point.config
    }
    # DeepSpeed's autotuner runs as a study of the experiment Tune BERT-base, health sweeps from the page of the node.
    assert engines == set(ENGINES) - {AUTOTUNING.name, HEALTH.name}


def test_the_scaling_sweep_runs_megatrons_own_flags_on_1_2_4_and_8_processes() -> None:
    sweep = SWEEPS[-1]
    points = [point.config for point in expand(sweep.data, sweep.sweep)]
    assert [config.world_size for config in points if config] == [1, 2, 4, 8]
    for config in points:
        assert config is not None
        script, *flags = command_argv(config)
        assert Path(script).is_file()
        environment = {
            "RANK": "0",
            "WORLD_SIZE": str(config.world_size),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(config.world_size),
        }
        parsed = read_flags(flags, environment).config
        # The flags of the command must match its configuration, which determines its metrics.
        for field in ("kind", "num_layers", "hidden_size", "num_attention_heads", "sequence_length", "vocab_size"):
            assert getattr(parsed.model, field) == getattr(config.model, field), field
        for field in (
            "global_batch_size",
            "micro_batch_size",
            "iterations",
            "recompute",
            "gradient_clipping",
            "optimizer",
            "learning_rate",
            "precision",
            "warmup_steps",
        ):
            assert getattr(parsed.train, field) == getattr(config.train, field), field
        assert parsed.parallel.model_dump(exclude={"engine"}) == config.parallel.model_dump(exclude={"engine"})


def test_the_demo_node_allows_only_its_own_commands(tmp_path: Path) -> None:
    path = content.allow_commands(tmp_path / "allowed.json")
    sweep, watch = read_allowed({"PARLAB_ALLOWED_COMMANDS": str(path)})
    assert sweep == [str(settings.BASE_DIR / "runners" / "engines" / "megatron.py")]
    assert watch[-1] == "--commit"
    assert watch[:-1] == slower.command()[:-2]
    assert json.loads(path.read_text())


def test_one_button_launches_every_sweep_once(browser: Client, demo: list[Experiment]) -> None:
    page = browser.get("/").content.decode()
    total = sum(len(expand(sweep.data, sweep.sweep)) for sweep in SWEEPS)
    assert len(demo) == len(SWEEPS)
    assert 'id="run-demo"' in page
    assert f"{total} small trainings" in page
    for _ in range(2):
        browser.post("/demo/sweeps/launch/")
    assert Run.objects.filter(origin=Run.Origin.MEASURED).count() == total
    running = browser.get("/").content.decode()
    assert 'id="run-demo"' not in running
    assert f"0 of {total} runs have ended" in running


def test_runs_of_a_later_version_are_not_counted_as_runs_of_the_demo(
    demo: list[Experiment], make_attempt: Callable[..., Attempt], user: User
) -> None:
    first = demo[0].configs.get()
    make_attempt(config=first, state="finished")
    before = progress()
    later = config_save(experiment=demo[0], data=first.data, sweep={"train.iterations": [7]}, user=user)

    make_attempt(config=later, state="running")

    assert later.version == 2
    assert progress() == before


def test_progress_is_polled_and_the_block_disappears_when_all_runs_have_ended(
    browser: Client, demo: list[Experiment]
) -> None:
    browser.post("/demo/sweeps/launch/")
    first = browser.get("/demo/sweeps/")
    url = first.content.decode().split('hx-get="')[1].split('"')[0]
    assert browser.get(url).status_code == 204
    Run.objects.filter(origin=Run.Origin.MEASURED).update(state="finished")
    ended = browser.get(url).content.decode()
    assert "every" not in ended
    assert "demo-sweeps" not in browser.get("/").content.decode()


def test_without_demo_experiments_pages_show_no_demo_block(browser: Client, experiment: Experiment) -> None:
    assert "demo-sweeps" not in browser.get("/").content.decode()


def test_a_viewer_cannot_launch_the_demo(demo: list[Experiment], django_user_model: Callable[..., Any]) -> None:
    person = User.objects.create_user("viewer", password="only looking here")
    client = Client()
    client.force_login(person)
    assert "Run the demo sweeps" not in client.get("/").content.decode()
    assert client.post("/demo/sweeps/launch/").status_code == 403


@pytest.mark.parametrize("sweep", network_sweeps(), ids=lambda sweep: sweep.name)
def test_every_point_of_the_emulated_networks_is_valid_and_emulated(sweep: Any) -> None:
    points = expand(sweep.data, sweep.sweep)
    assert [point.problems for point in points] == [[]] * len(points)
    for config in (point.config for point in points):
        assert config is not None
        assert (config.network.apply, config.train.compute, config.num_hosts) == ("emulate", "emulated", 3)


def test_emulated_times_reproduce_the_published_step_time() -> None:
    forward, backward = times_ms("gpipe", 1)
    # 66 micro batches of time and four ways of 5.1 ms are 6.64 s.
    assert 66 * (forward + backward) + 4 * 5.13 == pytest.approx(6640, rel=1e-3)
    assert backward == pytest.approx(3 * forward, rel=1e-3)
