"""Lists and pages of the admin: contents, queries and permissions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Experiment, Node, Run, Snapshot
from parlab.lab.services.attempts import summary_store
from parlab.lab.services.runs import config_launch
from runners.wire.protocol import RunState
from tests.conftest import place

MODELS = ["experiment", "config", "run", "snapshot", "node"]


@pytest.fixture
def lab(make_config: Callable[..., Config], user: User) -> list[Run]:
    """Twelve runs in two versions of an experiment, on a node, some of them with results."""
    runs = []
    for seeds in ([1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]):
        runs += config_launch(config=make_config(sweep={"train.seed": seeds}), user=user).created
    node = Node.objects.create(name="gpu1", hardware={"gpus": [{}, {}]}, last_heartbeat_at=timezone.now())
    Attempt.objects.update(state="finished")
    for attempt in Attempt.objects.all():
        place(attempt, node)
    Run.objects.update(state="finished")
    for attempt in Attempt.objects.all():
        summary_store(attempt=attempt, summary={"step_time_s": {"median": 1.5}, "samples_per_s": 2.0})
    return runs


@pytest.mark.parametrize("model", MODELS)
def test_lists_open_can_be_searched_and_need_a_constant_number_of_queries(
    model: str, admin: Client, lab: list[Run], django_assert_max_num_queries: Any
) -> None:
    admin.get(reverse(f"admin:lab_{model}_changelist"))  # kinds of contents are read once a process
    # Session, user, the list, its two counts, one query for each filter with related objects, and five of the frame.
    with django_assert_max_num_queries(14):
        response = admin.get(reverse(f"admin:lab_{model}_changelist"))
    assert response.status_code == 200
    assert admin.get(reverse(f"admin:lab_{model}_changelist") + "?q=pipeline").status_code == 200


@pytest.mark.parametrize("model", MODELS)
def test_the_page_of_an_object_opens(
    model: str, admin: Client, lab: list[Run], django_assert_max_num_queries: Any
) -> None:
    rows = {"experiment": Experiment, "config": Config, "run": Run, "snapshot": Snapshot, "node": Node}
    thing = rows[model]._default_manager.first()
    assert thing is not None
    admin.get(reverse(f"admin:lab_{model}_change", args=[thing.pk]))
    with django_assert_max_num_queries(16):
        response = admin.get(reverse(f"admin:lab_{model}_change", args=[thing.pk]))
    # A configuration opens in the builder.
    assert response.status_code == (302 if model == "config" else 200)


@pytest.mark.parametrize("model", MODELS)
def test_lists_require_permissions(model: str, staff: Callable[..., Client]) -> None:
    assert staff().get(reverse(f"admin:lab_{model}_changelist")).status_code == 403


@pytest.mark.parametrize("model", ["run", "snapshot", "node"])
def test_objects_written_by_nodes_cannot_be_added(model: str, admin: Client) -> None:
    assert admin.get(reverse(f"admin:lab_{model}_add")).status_code == 403


def test_snapshots_can_neither_be_changed_nor_deleted(admin: Client, lab: list[Run]) -> None:
    snapshot = Snapshot.objects.filter(kind="results")[0]
    page = admin.get(reverse("admin:lab_snapshot_change", args=[snapshot.pk])).content.decode()
    assert "the content matches the digest" in page
    assert admin.post(reverse("admin:lab_snapshot_change", args=[snapshot.pk]), {"content": "{}"}).status_code == 403
    assert admin.post(reverse("admin:lab_snapshot_delete", args=[snapshot.pk]), {"post": "yes"}).status_code == 403
    data = {"action": "delete_selected", "_selected_action": snapshot.pk, "post": "yes"}
    admin.post(reverse("admin:lab_snapshot_changelist"), data)
    assert Snapshot.objects.filter(pk=snapshot.pk).exists()


def test_a_run_cannot_be_edited(admin: Client, lab: list[Run]) -> None:
    admin.post(reverse("admin:lab_run_change", args=[lab[0].pk]), {"state": "queued", "label": "x"})
    lab[0].refresh_from_db()
    assert (lab[0].state, lab[0].label) == ("finished", "seed 1")
    assert 'name="_save"' not in admin.get(reverse("admin:lab_run_change", args=[lab[0].pk])).content.decode()


def act(client: Client, action: str, *runs: Run, **more: str) -> str:
    data = {"action": action, "_selected_action": [run.pk for run in runs], **more}
    return client.post(reverse("admin:lab_run_changelist"), data, follow=True).content.decode()


def test_cancel_asks_for_confirmation_and_reports_the_result(
    admin: Client, make_attempt: Callable[..., Attempt]
) -> None:
    waiting, running = make_attempt(state="queued").run, make_attempt(state="running").run
    assert "Cancel these runs?" in act(admin, "cancel", waiting, running)
    waiting.refresh_from_db()
    assert waiting.state == RunState.QUEUED
    page = act(admin, "cancel", waiting, running, confirmed="yes")
    assert "Pipeline schedules #1: cancelled" in page
    assert "Pipeline schedules #2: cancellation requested from its node" in page
    waiting.refresh_from_db()
    running.refresh_from_db()
    assert (waiting.state, running.state) == (RunState.CANCELLED, RunState.RUNNING)
    assert running.cancel_requested_at is not None
    assert "has already ended: cancelled" in act(admin, "cancel", waiting, confirmed="yes")


def test_relaunch_asks_for_confirmation_and_rejects_active_runs(
    admin: Client, make_attempt: Callable[..., Attempt]
) -> None:
    ended, running = make_attempt(state="failed").run, make_attempt(state="running").run
    assert "Relaunch these runs?" in act(admin, "relaunch", ended)
    page = act(admin, "relaunch", ended, running, confirmed="yes")
    assert "queued as attempt 2" in page
    assert "run #2 is running; cancel it or wait until it ends" in page


@pytest.mark.parametrize(("state", "offered"), [("running", "cancel"), ("failed", "relaunch")])
def test_the_page_of_a_run_offers_only_possible_actions(
    state: str, offered: str, admin: Client, staff: Callable[..., Client], make_attempt: Callable[..., Attempt]
) -> None:
    path = reverse("admin:lab_run_change", args=[make_attempt(state=state).run_id])
    page = admin.get(path).content.decode()
    assert [name for name in ("cancel", "relaunch") if f'id="{name}"' in page] == [offered]
    page = staff("view_run").get(path).content.decode()
    assert f'id="{offered}"' not in page


def test_view_permission_does_not_allow_cancelling(
    staff: Callable[..., Client], make_attempt: Callable[..., Attempt]
) -> None:
    run = make_attempt(state="queued").run
    act(staff("view_run"), "cancel", run, confirmed="yes")
    run.refresh_from_db()
    assert run.state == RunState.QUEUED


def test_nodes_are_disabled_and_enabled(admin: Client, db: None) -> None:
    node = Node.objects.create(name="gpu1", last_heartbeat_at=timezone.now(), slots=2)
    path = reverse("admin:lab_node_changelist")
    page = admin.post(path, {"action": "disable", "_selected_action": node.pk}, follow=True).content.decode()
    node.refresh_from_db()
    assert not node.is_enabled
    assert "Disabled gpu1; its runs continue, new runs start on other nodes" in page
    admin.post(reverse("admin:lab_node_change", args=[node.pk]), {"is_enabled": "on", "slots": "99"})
    node.refresh_from_db()
    assert (node.is_enabled, node.slots) == (True, 2)


def test_an_experiment_is_added_with_a_free_slug_and_its_owner(admin: Client, experiment: Experiment) -> None:
    page = admin.get(reverse("admin:lab_experiment_add"))
    owner = page.context["adminform"].form["owner"].value()
    data = {"name": "Pipeline, schedules", "question": "Why?", "notes": "n", "source": "", "owner": owner}
    management = {f"configs-{name}": "0" for name in ("TOTAL_FORMS", "INITIAL_FORMS", "MIN_NUM_FORMS", "MAX_NUM_FORMS")}
    admin.post(reverse("admin:lab_experiment_add"), data | management)
    created = Experiment.objects.get(name="Pipeline, schedules")
    assert (created.slug, created.notes, created.owner.username) == ("pipeline-schedules-2", "n", "root")


def test_clone_links_to_the_copy(admin: Client, lab: list[Run]) -> None:
    original = Experiment.objects.get()
    data = {"action": "clone", "_selected_action": original.pk, "from_object": "1"}
    page = admin.post(reverse("admin:lab_experiment_changelist"), data, follow=True).content.decode()
    copy = Experiment.objects.get(name="Pipeline schedules (copy)")
    assert f'<a href="/admin/lab/experiment/{copy.pk}/change/">Pipeline schedules (copy)</a>' in page
    assert [config.version for config in copy.configs.all()] == [1]
    assert not copy.runs.exists()


def test_the_admin_looks_like_the_site_and_links_back(admin: Client) -> None:
    page = admin.get(reverse("admin:index")).content.decode()
    assert f'<a class="brand" href="{reverse("home")}"' in page
    assert "css/tokens.css" in page
    assert "css/admin/look.css" in page


def test_pages_need_no_inline_script_or_style(admin: Client, lab: list[Run]) -> None:
    paths = [reverse("admin:index"), reverse("admin:lab_config_changelist")]
    paths += [reverse("admin:lab_run_change", args=[lab[0].pk]), reverse("admin:lab_run_changelist")]
    for path in paths:
        page = admin.get(path).content.decode()
        assert not re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*(?:src|application/json))[^>]*>", page), path
