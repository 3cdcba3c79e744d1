"""The page of one run: live while it is active, complete when it has ended."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Node, Run, Snapshot
from parlab.lab.services.published import published_run_add
from parlab.lab.services.runs import run_relaunch
from parlab.series.log import append_log
from tests.conftest import place

from .conftest import finish
from .test_experiments import EXPERIMENT, text

pytestmark = pytest.mark.django_db

RUN = f"{EXPERIMENT}runs/1/"
EVIL = "</pre><script>alert(1)</script>"


def poll_urls(content: str) -> dict[str, str]:
    """Read where the page asks for news: what -> url."""
    urls = [html.unescape(url) for url in re.findall(r'hx-get="([^"]+)" hx-trigger="every', content)]
    return {"log" if "/log/" in url else "live": url for url in urls}


def test_a_finished_run_shows_its_numbers_and_what_they_are_made_of(page: Client, four_runs: list[Run]) -> None:
    response = page.get(RUN)
    page_text = text(response)
    for expected in ("500 ms", "450\N{EN DASH}600", "8.00 samples/s", "128 tokens/s", "256 MiB rank 0"):
        assert expected in page_text
    assert "median of 3 steps (2 to 4), slowest rank of each" not in page_text  # for the pointer only
    assert "median of 3 steps (2 to 4), slowest rank of each" in response.content.decode()
    assert poll_urls(response.content.decode()) == {}
    assert "every" not in " ".join(re.findall(r'hx-trigger="([^"]*)"', response.content.decode()))
    assert 'id="relaunch"' in response.content.decode()
    assert 'id="cancel"' not in response.content.decode()


def test_a_running_run_shows_progress_and_the_time_that_is_left(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    summary = {"step_time_s": {"median": 30.0}}
    Attempt.objects.filter(pk=attempt.pk).update(last_step=2, started_at=timezone.now(), summary=summary)
    response = page.get(RUN)
    assert "2 / 4 steps" in text(response)
    assert "50 %, about 1 min left" in text(response)
    assert "<title>50 % · Pipeline schedules #1 · parlab</title>" in response.content.decode()
    assert 'id="cancel"' in response.content.decode()
    assert "data-confirm=" in response.content.decode()
    assert set(poll_urls(response.content.decode())) == {"live"}
    assert set(poll_urls(page.get(f"{RUN}log/").content.decode())) == {"live", "log"}


def test_before_the_first_summary_the_time_left_comes_from_the_pace(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    started = timezone.now() - timedelta(seconds=100)
    Attempt.objects.filter(pk=attempt.pk).update(last_step=2, started_at=started)
    assert "about 1 min 40 s left" in text(page.get(RUN))


def test_polls_answer_only_what_is_new_and_stop_at_the_end(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    urls = poll_urls(page.get(f"{RUN}log/").content.decode())
    urls["details"] = poll_urls(page.get(f"{RUN}details/").content.decode())["live"]
    assert page.get(urls["live"]).status_code == 204
    assert page.get(urls["log"]).status_code == 204

    place(attempt, committed=3)
    assert "only measurements" in text(page.get(urls["log"]))
    assert page.get(urls["live"]).status_code == 200

    append_log(attempt.pk, b"first line\n")
    Attempt.objects.filter(pk=attempt.pk).update(last_step=1)
    place(attempt, committed=11)
    live, log = page.get(urls["live"]), page.get(urls["log"])
    assert "1 / 4 steps" in text(live)
    assert "hx-swap-oob" not in live.content.decode()
    assert "first line" in text(log)
    assert "hx-get" in log.content.decode()

    finish(attempt)
    Attempt.objects.filter(pk=attempt.pk).update(traceback="", command=["python", "-m", "x", "--config", "/c.json"])
    ended, last = page.get(urls["details"]), page.get(urls["log"])
    assert 'hx-swap-oob="true"' in ended.content.decode()
    assert "Manual launch" in text(ended)
    assert "hx-get" not in ended.content.decode()
    assert last.status_code == 200
    assert "hx-get" not in last.content.decode()


def test_a_queued_run_says_why_it_waits(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    make_attempt(state="queued")
    assert "no node of pool default" in text(page.get(RUN))


def test_a_failed_run_shows_its_traceback(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="failed")
    Run.objects.filter(pk=attempt.run_id).update(reason="rank 1: ValueError: no")
    Attempt.objects.filter(pk=attempt.pk).update(traceback=f"Traceback ...\nValueError: {EVIL}", exit_code=0)
    response = page.get(RUN)
    assert "Failed rank 1, before the first step rank 1: ValueError: no" in text(response)
    assert "Open the log" in text(response)
    log = page.get(f"{RUN}log/")
    assert "Traceback ..." in text(log)
    assert EVIL not in log.content.decode()
    assert html.escape(EVIL) in log.content.decode()


def test_hostile_log_lines_are_text(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    append_log(attempt.pk, f"{EVIL}\n".encode() + b"\x1b[31mred\xff\x00\n" + b"x" * 100_000 + b"\n")
    for url in (f"{RUN}log/", f"{RUN}log/?seen=x"):
        content = page.get(url).content.decode()
        assert EVIL not in content
        assert html.escape(EVIL) in content
        assert "\x1b" not in content
        assert len(content) < 60_000


def test_the_whole_log_is_searched_and_a_place_shown(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="failed")
    append_log(attempt.pk, b"first\n" + b"quiet\n" * 500 + f"ValueError: {EVIL}\n".encode() + b"quiet\n" * 500)
    url = f"{RUN}log/find/"
    response = page.get(url, {"errors": "1"})
    assert "1 line looks like an error" in text(response)
    assert f"502 ValueError: {EVIL}" in text(response)
    assert EVIL not in response.content.decode()
    around = page.get(url, {"line": "502", "find": "value"})
    assert 'class="meant"><i>502</i>' in around.content.decode()
    assert "<i>472</i>" in around.content.decode()
    assert f"No line contains \N{LEFT DOUBLE QUOTATION MARK}{EVIL}x" in text(page.get(url, {"find": f"{EVIL}x"}))
    assert "The log has no line 9999" in text(page.get(url, {"line": "9999"}))
    assert page.get(url).status_code == 200


def test_the_config_marks_what_was_swept_and_what_differs_from_the_defaults(page: Client, four_runs: list[Run]) -> None:
    content = page.get(f"{RUN}details/").content.decode()
    rows = re.findall(r'<tr( class="changed")?><th scope="row">(\w+)</th><td[^>]*>(.*?)</td></tr>', content)
    fields = {name: (bool(changed), "swept" in value) for changed, name, value in rows}
    assert fields["schedule"] == (True, True)
    assert fields["micro_batch_size"] == (False, True)
    assert fields["hidden_size"] == (True, False)
    assert fields["seed"] == (False, False)
    assert fields["gpus_per_node"] == (False, False)


def test_the_folder_of_the_checkpoints_and_the_last_one_are_shown(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = finish(make_attempt()).current_attempt()
    assert 'id="checkpoints"' not in page.get(f"{RUN}details/").content.decode()
    saved = {"count": 3, "last_step": 1200, "bytes": 2**30, "save_s": 2.5, "blocked_s": 0.25, "load_s": 1.5}
    Attempt.objects.filter(pk=attempt.pk).update(
        environment={"variables": {"PARLAB_CHECKPOINT_DIR": "/data/run-7"}}, summary={"checkpoints": saved}
    )
    page_text = text(page.get(f"{RUN}details/")).replace("\u202f", " ")
    assert "Folder /data/run-7 Last complete step 1,200, 1.00 GiB" in page_text
    assert "Written in 2.50 s, of which the training stood still for 250 ms Loaded in 1.50 s" in page_text


def test_the_command_by_hand_is_the_attempts_own_with_the_config_as_a_file(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = finish(make_attempt()).current_attempt()
    command = ["/opt/venv/bin/python", "-m", "runners.engines.pipeline", "--config", "/var/run 1/config.json"]
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": "/srv/parlab", "PARLAB_RUN": "1/1"}
    environment = {"hostname": "a", "devices": [{"name": "cpu"}], "tags": ["x", "y"], "variables": variables}
    environment["links"] = {"why_not": "needs root"}
    Attempt.objects.filter(pk=attempt.pk).update(command=command, environment=environment)
    page_text = text(page.get(f"{RUN}details/"))
    line = 'PYTHONPATH="$PWD" GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 python -m runners.engines.pipeline'
    assert f"{line} --config config.json" in page_text
    assert "--config '/var/run 1/config.json'" in page_text
    assert '"micro_batch_size": 1' in page_text
    assert "Devices 0 name cpu" in page_text
    assert "Tags x, y" in page_text
    assert "Links cannot be emulated needs root" in page_text
    assert "why_not" not in page_text


def test_programs_of_the_virtual_environment_are_named_as_its_path_finds_them(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = finish(make_attempt()).current_attempt()
    python, mpirun = "/opt/venv/bin/python3.11", "/opt/venv/bin/mpirun"
    command = [
        python,
        "-m",
        "runners.node.launch.ports",
        mpirun,
        "-np",
        "2",
        python,
        "-m",
        "runners.node.launch.ranks",
        "/srv/train.py",
    ]
    Attempt.objects.filter(pk=attempt.pk).update(command=command)
    assert (
        " python -m runners.node.launch.ports mpirun -np 2 python -m runners.node.launch.ranks /srv/train.py"
        in text(page.get(f"{RUN}details/"))
    )


def test_earlier_attempts_keep_their_own_log(page: Client, admin: User, make_attempt: Callable[..., Attempt]) -> None:
    first = make_attempt(state="running")
    append_log(first.pk, b"of the first attempt\n")
    run = finish(first, state="failed")
    run_relaunch(run=run, user=admin)
    current, earlier = page.get(f"{RUN}log/"), page.get(f"{RUN}log/?attempt=1")
    assert "of the first attempt" not in text(current)
    assert "of the first attempt" in text(earlier)
    assert "Attempt 1 of 2." in text(earlier)
    assert page.get(f"{RUN}?attempt=7").status_code == 404


def test_a_new_attempt_loads_the_page_again(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt(state="running").run
    url = poll_urls(page.get(RUN).content.decode())["live"]
    Attempt.objects.create(run=run, number=2)
    Run.objects.filter(pk=run.pk).update(attempt_number=2, state="queued")
    assert page.get(url).headers["HX-Refresh"] == "true"


def test_snapshots_can_be_read(page: Client, four_runs: list[Run]) -> None:
    run = four_runs[0]
    snapshot = Snapshot.objects.create(
        experiment=run.experiment, run=run, kind="results", digest="ab" * 32, content={"step": EVIL}
    )
    url = f"{RUN}snapshots/{snapshot.pk}/"
    assert url in page.get(f"{RUN}details/").content.decode()
    response = page.get(url)
    assert "ab" * 32 in text(response)
    assert EVIL not in response.content.decode()
    assert page.get(f"{EXPERIMENT}runs/2/snapshots/{snapshot.pk}/").status_code == 404


def test_published_figures_have_a_page_without_attempts(page: Client, admin: User, swept: Config) -> None:
    point = {"network": "fast"}
    published_run_add(config=swept, point=point, user=admin, summary={"step_time_s": {"mean": 6.64}})
    response = page.get(RUN)
    page_text = text(response)
    assert "published figures" in page_text
    assert "6.64 s" in page_text
    assert "Attempts" not in text(page.get(f"{RUN}details/"))
    assert 'id="relaunch"' not in response.content.decode()
    assert page.get(f"{RUN}log/").status_code == 404


def test_published_figures_stand_among_their_siblings(page: Client, admin: User, swept: Config) -> None:
    for name, seconds, mfu in (("fast", 6.64, 0.41), ("slow", 9.5, 0.29)):
        summary = {"step_time_s": {"mean": seconds}, "mfu": mfu}
        published_run_add(config=swept, point={"network": name}, user=admin, summary=summary)
    charts = page.get(RUN).content.decode()
    assert "Step time of 2 runs" in charts
    assert "MFU of 2 runs" in charts
    assert "slow: 9.5" in charts
    assert "Peak memory of" not in charts
    assert ">Charts</a>" in page.get(f"{RUN}details/").content.decode()


def test_published_figures_alone_have_no_charts(page: Client, admin: User, swept: Config) -> None:
    published_run_add(config=swept, point={"network": "fast"}, user=admin, summary={"step_time_s": {"mean": 6.64}})
    for address in (RUN, f"{RUN}details/"):
        content = page.get(address).content.decode()
        assert ">Charts</a>" not in content
        assert 'id="config"' in content


def test_cancel_ends_a_waiting_run_and_is_refused_for_one_that_has_ended(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    run = make_attempt(state="queued").run
    assert "Run 1 is cancelled." in text(page.post(f"{RUN}cancel/", follow=True))
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert "was not cancelled" in text(page.post(f"{RUN}cancel/", follow=True))


def test_cancel_of_a_running_run_is_asked_for_once(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    make_attempt(state="running")
    response = page.post(f"{RUN}cancel/", follow=True)
    assert "Run 1 is stopping." in text(response)
    assert re.search(r'id="cancel" disabled', response.content.decode())


def test_relaunch_queues_the_next_attempt_and_is_refused_while_one_is_active(
    page: Client, four_runs: list[Run]
) -> None:
    assert "Run 1 is queued again" in text(page.post(f"{RUN}relaunch/", follow=True))
    assert four_runs[0].attempts.count() == 2
    assert "was not launched again" in text(page.post(f"{RUN}relaunch/", follow=True))
    assert four_runs[0].attempts.count() == 2


def test_the_right_to_change_runs_is_enough_to_cancel_ones_own(
    allowed: Callable[..., Client], make_attempt: Callable[..., Attempt]
) -> None:
    make_attempt(state="queued")
    browser = allowed("change_run")
    assert browser.post(f"{RUN}cancel/").status_code == 403
    Run.objects.update(created_by=User.objects.get(username="change_run"))
    assert browser.post(f"{RUN}cancel/").status_code == 302
    assert Run.objects.get().state == "cancelled"


def test_a_run_page_takes_few_queries(
    page: Client, make_attempt: Callable[..., Attempt], django_assert_num_queries: Any
) -> None:
    attempt = make_attempt(state="running")
    append_log(attempt.pk, b"line\n")
    # session, person, run, attempt, members, series, findings, marks; experiments, alerts and nodes of the menu
    with django_assert_num_queries(14):
        response = page.get(RUN)
    Attempt.objects.filter(pk=attempt.pk).update(last_step=1)
    with django_assert_num_queries(8):  # session, person, run, attempt, members, findings, marks, traces
        page.get(poll_urls(response.content.decode())["live"])


@pytest.mark.parametrize("engine", ["allreduce", "capacity"])
def test_engines_without_steps_show_no_empty_curve_of_them(
    page: Client, make_attempt: Callable[..., Attempt], make_config: Callable[..., Config], engine: str
) -> None:
    ranks = 2 if engine == "allreduce" else 1
    config = make_config(data={"parallel": {"engine": engine, "data_parallel_size": ranks}})
    attempt = make_attempt(config=config, state="running")
    for finished in (False, True):
        if finished:
            finish(attempt)
        content = page.get(RUN).content.decode()
        assert 'data-figure="step-time"' not in content
        assert "<dt>Throughput</dt>" not in content
        assert " left" not in text(page.get(RUN))  # a search has no known end


def test_a_run_on_several_nodes_shows_each_with_its_state_and_reason(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="failed")
    nodes = [Node.objects.create(name=name) for name in ("gpu1", "gpu2")]
    place(attempt, nodes[0], state="failed", reason="ValueError: <b>", exit_code=1)
    assert 'id="members"' not in page.get(f"{RUN}system/").content.decode()
    place(attempt, nodes[1], node_rank=1, state="cancelled", reason="node gpu1: ...", is_consequence=True)
    shown = text(page.get(f"{RUN}system/"))
    assert "0 gpu1 failed \N{EN DASH} 1 ValueError: <b> 0.000 s" in shown
    assert "1 gpu2 cancelled \N{EN DASH} \N{EN DASH} consequence node gpu1: ... 0.000 s" in shown
    assert "failed gpu1, gpu2" in text(page.get(f"{RUN}details/"))


@pytest.mark.django_db
def test_the_first_figures_of_a_run_are_requested_with_its_page(
    page: Client, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    shown = page.get(attempt.run.get_absolute_url()).content.decode()
    preloaded = re.findall(r'<link rel="preload" as="fetch" crossorigin href="([^"]*)"', shown)
    figures = re.findall(r'data-figure-url="([^"]*)"', shown)
    assert preloaded == figures[:2] != []
