"""An experiment goes with everything that belongs to it, unless some of it still runs."""

from collections.abc import Callable

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from parlab.lab import services
from parlab.lab.models import Attempt, Config, Experiment, Node, Snapshot, StoredFile
from runners.protocol import Report


def test_an_experiment_with_finished_runs_is_deleted_after_a_confirmation(
    admin: Client, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="running")
    services.attempt_report(attempt=attempt, report=Report(state="finished", at=1.0))
    services.summary_store(attempt=attempt, summary={"samples_per_s": 1.0})
    url = reverse("admin:lab_experiment_delete", args=[experiment.pk])

    asked = admin.get(url)
    said = asked.content.decode()
    assert "Runs with their logs and series: 1" in said
    assert "archive it" in said
    admin.post(url, {"post": "yes"})

    assert not Experiment.objects.exists()
    assert not Snapshot.objects.exists()


def test_an_experiment_with_a_running_run_is_kept_and_says_why(
    admin: Client, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    make_attempt(state="running")
    url = reverse("admin:lab_experiment_delete", args=[experiment.pk])

    asked = admin.get(url)
    admin.post(url, {"post": "yes"})

    assert "cancel it first" in asked.content.decode()
    assert Experiment.objects.exists()


def test_many_experiments_are_asked_for_by_what_they_hold_and_go_with_their_pictures(
    admin: Client, admin_user: User, experiment: Experiment, make_attempt: Callable[..., Attempt]
) -> None:
    services.attempt_report(attempt=make_attempt(state="running"), report=Report(state="finished", at=1.0))
    other = services.experiment_create(name="Other", owner=admin_user)
    for number, one in enumerate((experiment, experiment, other)):
        file = services.file_store(data=bytes([number // 2]), media_type="image/png", width=1, height=1)
        services.picture_add(experiment=one, file=file, caption=str(number), facts={}, user=admin_user)
    url = reverse("admin:lab_experiment_changelist")
    chosen = {"action": "delete_selected", "_selected_action": [experiment.pk]}

    asked = admin.post(url, chosen).content.decode()
    admin.post(url, chosen | {"post": "yes"})

    assert "Snapshots and pictures: 2" in asked
    assert list(Experiment.objects.all()) == [other]
    assert [bytes(file.data) for file in StoredFile.objects.all()] == [b"\1"]  # the other one still shows it


def test_what_runs_were_made_from_stays_and_says_why(
    admin: Client, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    used = make_attempt(state="finished").run.config
    unused = services.config_save(
        experiment=used.experiment, data={**used.data, "train": {"seed": 9}}, sweep={}, note="", user=used.created_by
    )
    admin.post(reverse("admin:lab_config_delete", args=[used.pk]), {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": [used.pk, unused.pk]}
    said = admin.post(reverse("admin:lab_config_changelist"), chosen).content.decode()
    assert "is used by runs; delete its experiment instead" in said
    admin.post(reverse("admin:lab_config_delete", args=[unused.pk]), {"post": "yes"})
    assert list(Config.objects.all()) == [used]


def test_nodes_that_worked_and_people_who_made_things_stay(
    admin: Client, user: User, make_attempt: Callable[..., Attempt]
) -> None:
    attempt = make_attempt(state="finished")
    attempt.node = Node.objects.create(name="gpu1")
    attempt.save()
    node = admin.get(reverse("admin:lab_node_delete", args=[attempt.node.pk])).content.decode()
    maker = admin.get(reverse("admin:auth_user_delete", args=[user.pk])).content.decode()
    assert "has 1 attempt; disable it instead" in node
    assert "clear Active instead" in maker
    guest = User.objects.create_user("guest", password="made nothing but a token")
    services.token_create(user=guest, name="one", by=guest)
    admin.post(reverse("admin:auth_user_delete", args=[guest.pk]), {"post": "yes"})
    assert not User.objects.filter(username="guest").exists()
