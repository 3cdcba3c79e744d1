"""Deleting an experiment deletes everything in it, unless it has active runs."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Experiment, Node, Run, Snapshot, StoredFile
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.attempts import summary_store
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.members import attempt_report
from parlab.lab.services.pictures import file_store, picture_add
from parlab.pages.admin.experiments import ExperimentAdmin
from runners.wire.protocol import Report
from tests.conftest import place

pytestmark = pytest.mark.database


def test_an_experiment_with_finished_runs_is_deleted_after_a_confirmation(
    admin: Client, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    attempt_report(attempt=attempt, report=Report(state="finished", at=1.0))
    summary_store(attempt=attempt, summary={"samples_per_s": 1.0})
    url = reverse("admin:lab_experiment_delete", args=[experiment.pk])

    response = admin.get(url)
    text = response.content.decode()
    assert "Runs with their logs and series: 1" in text
    assert "archive it" in text
    admin.post(url, {"post": "yes"})

    assert not Experiment.objects.exists()
    assert not Snapshot.objects.exists()


def test_an_experiment_with_an_active_run_cannot_be_deleted(
    admin: Client, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    make_attempt(state="running")
    url = reverse("admin:lab_experiment_delete", args=[experiment.pk])

    response = admin.get(url)
    admin.post(url, {"post": "yes"})

    assert "cancel it first" in response.content.decode()
    assert Experiment.objects.exists()


def test_a_run_that_becomes_active_meanwhile_or_is_archived_is_named(
    admin: Client, experiment: Experiment, make_attempt: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = make_attempt(state="running")
    Run.everything.filter(pk=attempt.run_id).update(hidden_at=timezone.now())
    url, listed = (
        reverse("admin:lab_experiment_delete", args=[experiment.pk]),
        reverse("admin:lab_experiment_changelist"),
    )
    assert "is running; cancel it first" in admin.get(url).content.decode()
    monkeypatch.setattr(ExperimentAdmin, "get_deleted_objects", lambda *_: ([], {}, set(), []))
    chosen = {"action": "delete_selected", "_selected_action": [experiment.pk], "post": "yes"}
    for address, data in ((url, {"post": "yes"}), (listed, chosen)):
        answer = admin.post(address, data, follow=True).content.decode()
        assert "Nothing was deleted: " in answer
        assert "is running; cancel it first" in answer
    assert Experiment.objects.exists()


def test_deleting_experiments_lists_their_contents_and_deletes_their_pictures(
    admin: Client, admin_user: User, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    attempt_report(attempt=make_attempt(state="running"), report=Report(state="finished", at=1.0))
    other = experiment_create(name="Other", owner=admin_user)
    for number, owner in enumerate((experiment, experiment, other)):
        file = file_store(data=bytes([number // 2]), media_type="image/png", width=1, height=1)
        picture_add(experiment=owner, file=file, caption=str(number), facts={}, user=admin_user)
    url = reverse("admin:lab_experiment_changelist")
    chosen = {"action": "delete_selected", "_selected_action": [experiment.pk]}

    text = admin.post(url, chosen).content.decode()
    admin.post(url, chosen | {"post": "yes"})

    assert "Snapshots and pictures: 2" in text
    assert list(Experiment.objects.all()) == [other]
    assert [bytes(file.data) for file in StoredFile.objects.all()] == [b"\1"]  # still used by the other experiment


def test_a_used_config_cannot_be_deleted(
    admin: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    used = make_attempt(state="finished").run.config
    unused = config_save(
        experiment=used.experiment, data={**used.data, "train": {"seed": 9}}, sweep={}, note="", user=used.created_by
    )
    admin.post(reverse("admin:lab_config_delete", args=[used.pk]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [used.pk, unused.pk]}
    text = admin.post(reverse("admin:lab_config_changelist"), chosen).content.decode()
    assert "is used by runs; delete its experiment instead" in text
    admin.post(reverse("admin:lab_config_delete", args=[unused.pk]), {"post": "yes"})
    assert list(Config.objects.all()) == [used]


def test_nodes_with_attempts_and_users_with_objects_cannot_be_deleted(
    admin: Client, user: User, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="finished")
    gpu1 = Node.objects.create(name="gpu1")
    place(attempt, gpu1)
    node = admin.get(reverse("admin:lab_node_delete", args=[gpu1.pk])).content.decode()
    maker = admin.get(reverse("admin:auth_user_delete", args=[user.pk])).content.decode()
    assert "has 1 attempt; disable it instead" in node
    assert "clear Active instead" in maker
    guest = User.objects.create_user("guest", password="made nothing but a token")
    token_create(user=guest, name="token", by=guest)
    admin.post(reverse("admin:auth_user_delete", args=[guest.pk]), {"post": "yes"})
    assert not User.objects.filter(username="guest").exists()
