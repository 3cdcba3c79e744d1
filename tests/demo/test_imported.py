"""What a fresh demo shows before anything ran: published figures, the doubts about them, reports and pictures."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.demo import content
from parlab.demo.imported import CASE, DIRECTORY, DOCUMENTS
from parlab.lab.models import Experiment, Finding, PictureJob, ReportLink, Run, Source
from runners.protocol import RunState

pytestmark = pytest.mark.django_db


def test_a_fresh_demo_holds_published_figures_with_their_doubts_a_shared_report_and_a_case_to_draw(user: User) -> None:
    content.demo_experiments(user)
    assert {one.file for one in DOCUMENTS} == {path.name for path in DIRECTORY.iterdir()}
    for one in DOCUMENTS:
        experiment = Experiment.objects.get(name=one.name)
        assert (experiment.source, experiment.question) == (one.source, one.question)
        assert experiment.runs.filter(state=RunState.FINISHED, origin=Run.Origin.IMPORTED).exists()
    found = Finding.objects.order_by("rule").values_list("rule", "experiment__name", "run__number")
    assert list(found) == [
        ("aggregate", "Layouts of GPT from 1.7B to 1T", None),
        ("gpus-of-layout", "GPT 52B on 64 V100, on four days", 7),
        ("off-neighbours", "Megatron BERT 345M on 1 to 128 A100", 3),
        ("samples-of-iterations", "Megatron BERT 345M on 1 to 128 A100", 4),
    ]
    assert Client().get(f"/shared/{ReportLink.objects.get().token}/").status_code == 200
    asked = PictureJob.objects.filter(state=PictureJob.State.WAITING)
    assert {job.run.experiment.name if job.run else "a report" for job in asked} == {CASE.name, "a report"}

    before = Experiment.objects.count(), Run.objects.count(), Source.objects.count()
    content.demo_experiments(user)
    assert (Experiment.objects.count(), Run.objects.count(), Source.objects.count()) == before
