"""A private project with one of everything that an address can name.

Addresses contain `zyx`, everything else of it `qvw`, which no request says.
"""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from io import BytesIO
from typing import Any, NamedTuple

import zstandard
from django.contrib.auth.models import Group, User
from django.utils import timezone

from parlab.formats import read_document
from parlab.lab.models import (
    AdviceTrial,
    Attempt,
    Comment,
    Config,
    Dashboard,
    Event,
    Experiment,
    Finding,
    InboxItem,
    LaunchApproval,
    LogFormat,
    LoggedModel,
    Member,
    Node,
    Picture,
    Project,
    ProjectPool,
    Report,
    ReportLink,
    Role,
    Run,
    RunNote,
    SavedView,
    Snapshot,
    Source,
    SourceChunk,
    Star,
    Tag,
    TagOfRun,
)
from parlab.lab.models.access.project import shared_project_id
from parlab.lab.models.access.viewer import viewer_of, viewing
from parlab.lab.services import storable
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.projects import member_set, project_create
from parlab.lab.services.access.service_accounts import service_account_create, service_token_create
from parlab.lab.services.access.tokens import token_create
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.pictures import file_store, picture_add
from parlab.lab.services.reports import report_create, report_publish
from parlab.notify.models import Delivery, Subscription
from parlab.tracking.artifacts import artifact_store
from parlab.tracking.point import Point
from parlab.tracking.runs import points_append, tags_set, tracked_run_start
from parlab.tracking.streams import Opening, stream_open
from parlab.tuner.models import Study, Trial
from parlab.watch.models import Alert, Result, Series, Watch
from runners.config import RunConfig, digest
from tests.conftest import SMALL
from tests.pages.conftest import summary

MARK = "qvw"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc330000"
    "000049454e44ae426082"
)


COLUMNS = [{"key": "loss", "role": "quantity", "name": "loss"}]


class World(NamedTuple):
    """The project, who works in it, who does not, and what addresses name."""

    project: Project
    owner: User
    outsider: User
    secrets: dict[str, str]
    """Tokens of the two, by name."""
    experiment: Experiment
    run: Run
    reported: Run
    report: Report
    pks: dict[str, int | str]
    """Of everything else, by kind."""


def person(name: str) -> User:
    groups_refresh()
    user = User.objects.create_user(name, password="a member of the lab", is_staff=True)
    user.groups.add(Group.objects.get(name="operator"))
    return user


def build() -> World:
    """Build the private project `Zyx` of the user `owner`; `outsider` has an account and works elsewhere."""
    owner, outsider, creator = person("owner"), person("outsider"), person("creator")
    project = project_create(name="Zyx", user=creator)
    member_set(project=project, user=owner, role=Role.MAINTAINER)
    with viewing(viewer_of(owner, project.pk)):
        return _filled(project, owner, outsider)


def _filled(project: Project, owner: User, outsider: User) -> World:
    shared = Project._base_manager.get(pk=shared_project_id())  # a test with transactions may have emptied its table
    secrets = {
        "owner": token_create(user=owner, name="script", by=owner, project=project)[1],
        "outsider": token_create(user=outsider, name="script", by=outsider, project=shared)[1],
    }
    experiment = experiment_create(name="Qvw question", question="Is qvw fast?", notes="qvw notes", owner=owner)
    Experiment.objects.filter(pk=experiment.pk).update(slug="zyx")
    experiment.refresh_from_db()
    run, reported = _measured(experiment, owner), _reported(experiment, owner)
    pks: dict[str, int | str] = {}
    ProjectPool.objects.create(project=project, pool="qvwpool")
    online = timezone.now() + timedelta(hours=1)  # however long the walk takes
    node = Node.objects.create(name="zyxnode", pool="qvwpool", last_heartbeat_at=online)
    Member.objects.create(attempt=run.current_attempt(), node=node, state="finished")
    pks |= _of_people(experiment, run, owner) | _of_files(experiment, owner) | _of_watches(experiment, run, owner)
    robot = service_account_create(project=project, name="zyxrobot", by=owner)
    pks["robot token"] = service_token_create(account=robot, name="qvw", scopes=["read"], days=1, by=owner)[0].pk
    approval = LaunchApproval.objects.create(experiment=experiment, asked_by=owner, gpu_hours=1, budget=0)
    pks["approval"] = approval.pk
    pks["asked"] = InboxItem.objects.create(
        kind="launch.asked", key=approval.key, experiment=experiment, data={"approval": approval.pk, "user": "qvw"}
    ).pk
    study = Study.objects.create(config=run.config, created_by=owner)
    Trial.objects.create(study=study, run=run, role=Trial.Role.SEARCH, number=1, key="qvw", tuning_space="z1")
    pks["study"] = study.pk
    report, more = _written(experiment, owner)
    return World(project, owner, outsider, secrets, experiment, run, reported, report, pks | more)


def _measured(experiment: Experiment, owner: User) -> Run:
    data = storable.json({**SMALL, "cluster": {"pool": "qvwpool"}})
    config = Config.objects.create(
        experiment=experiment, version=1, data=data, sweep={}, digest=digest({"data": data}), created_by=owner
    )
    numbers = summary(0.5)
    run = Run.objects.create(
        experiment=experiment,
        config=config,
        number=1,
        label="qvw run",
        point_digest=digest({}),
        resolved=RunConfig.model_validate(data).resolved(),
        state="finished",
        summary=numbers,
        step_time_s=0.5,
        samples_per_s=8.0,
        tokens_per_s=128.0,
        started_at=timezone.now(),
        ended_at=timezone.now(),
        created_by=owner,
    )
    attempt = Attempt.objects.create(run=run, number=1, state="finished", summary=numbers, last_step=4)
    Snapshot.objects.create(
        experiment=experiment, run=run, kind="configuration", digest=digest({"zyx": 1}), content={"qvw": 1}
    )
    AdviceTrial.objects.create(
        run=run, changed_run=run, kind="zyx", title="qvw", gain=0.1, low=0.0, high=0.2, part="zyx", created_by=owner
    )
    assert attempt.pk
    return run


def _reported(experiment: Experiment, owner: User) -> Run:
    tracked = tracked_run_start(experiment=experiment, user=owner, name="qvw reported", run_uuid="zyxrun")
    points_append(tracked=tracked, points=[Point("qvwmetric", 1.0, 1_700_000_000_000, 1)])
    tags_set(tracked=tracked, tags={"qvwtag": "1"})
    LoggedModel.objects.create(
        tracked=tracked, model_id="m-zyx", name="qvw model", created_ms=1, updated_ms=1, tags={"zyx": "qvw"}
    )
    stream_open(run_id="zyxrun", key="a-stream", opening=Opening(), user=owner)
    artifact_store(tracked=tracked, path="zyx.txt", blocks=[b"qvw"])
    return tracked.run


def _of_people(experiment: Experiment, run: Run, owner: User) -> dict[str, int | str]:
    Tag.objects.create(experiment=experiment, name="qvwlabel")
    TagOfRun.objects.create(run=run, name="qvwmark")
    Star.objects.create(run=run, user=owner)
    RunNote.objects.create(run=run, text="qvw note", edited_by=owner)
    finding = Finding.objects.create(
        experiment=experiment, run=run, rule="zyx", severity="error", message="qvw is odd", where_digest="zyx"
    )
    comment = Comment.objects.create(experiment=experiment, text="qvw comment", author=owner)
    item = InboxItem.objects.create(
        kind="run.failed", key="run.failed/zyx", experiment=experiment, run=run, path=run.get_absolute_url()
    )
    view = SavedView.objects.create(name="qvw view", path="/experiments/", query="q=qvw", owner=owner)
    board = Dashboard.objects.create(name="qvw board", experiment=experiment, owner=owner)
    subscription = Subscription.objects.create(
        user=owner, experiment=experiment, channel="webhook", url="https://qvw.example.org", topics=["ends"]
    )
    event = Event.objects.create(kind="run.failed", at=timezone.now(), experiment=experiment, run=run, text="qvw")
    delivery = Delivery.objects.create(subscription=subscription, event=event, state="failed")
    found = {"finding": finding, "comment": comment, "item": item, "view": view, "board": board}
    found |= {"subscription": subscription, "delivery": delivery}
    return {name: row.pk for name, row in found.items()}


def _of_files(experiment: Experiment, owner: User) -> dict[str, int | str]:
    text = b"qvw\nlines\n"
    document = read_document(BytesIO(text).read().decode().splitlines(), file="qvw.log")
    source = Source.objects.create(
        experiment=experiment,
        name="qvw.log",
        format=document.format,
        sha256=sha256(text).hexdigest(),
        size=len(text),
        document=storable.json(document.model_dump(mode="json")),
        created_by=owner,
    )
    SourceChunk.objects.create(source=source, position=0, size=len(text), data=zstandard.compress(text))
    picture = Picture.objects.create(
        source=source, reference="qvw.png", media_type="image/png", sha256=sha256(PNG).hexdigest(), data=PNG
    )
    file = file_store(data=PNG, media_type="image/png", width=1, height=1)
    drawn = picture_add(experiment=experiment, file=file, caption="qvw picture", facts={}, user=owner)
    LogFormat.objects.create(
        name="zyxformat", definition={"name": "zyxformat", "samples": ["qvw"], "columns": COLUMNS}, created_by=owner
    )
    return {"source": source.pk, "picture": picture.pk, "drawn": drawn.pk, "sha256": file.sha256}


def _of_watches(experiment: Experiment, run: Run, owner: User) -> dict[str, int | str]:
    watch = Watch.objects.create(name="qvw watch", key="qvwkey", config=run.config, created_by=owner)
    good, bad = (Result.objects.create(watch=watch, run=run, attempt_number=n, at=timezone.now()) for n in (1, 2))
    part: dict[str, Any] = {"measure": "step_time", "series": "", "size": 0.1, "low": 0.05, "high": 0.2, "kind": "step"}
    part |= {"is_worse": True, "first_bad": bad.pk, "last_good": good.pk}
    alert = Alert.objects.create(watch=watch, first_bad=bad, last_good=good, kind="step", parts=[part])
    series = Series.objects.create(watch=watch, measure="step_time")
    return {"watch": watch.pk, "alert": alert.pk, "series": series.pk}


def _written(experiment: Experiment, owner: User) -> tuple[Report, dict[str, int | str]]:
    report = report_create(title="Qvw report", text="qvw words", experiment=experiment, user=owner)
    version = report_publish(report=report, content={}, revision=1, user=owner)
    # Of a time when the project was not private: such a link must not open it now.
    link = ReportLink.objects.create(version=version, token="zyx-link", created_by=owner)
    Report.objects.filter(pk=report.pk).update(slug="zyx")
    report.refresh_from_db()
    return report, {"link": link.pk, "token": link.token}
