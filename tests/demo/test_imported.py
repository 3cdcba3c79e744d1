"""Contents of a fresh demo before any run: published results, findings, reports and pictures."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.demo import content
from parlab.demo.imported import CASE, DIRECTORY, DOCUMENTS
from parlab.lab.models import Experiment, Finding, PictureJob, ReportLink, Run, Source
from runners.wire.protocol import RunState

pytestmark = pytest.mark.django_db


def test_a_fresh_demo_contains_published_results_findings_a_shared_report_and_picture_jobs(admin_user: User) -> None:
    content.demo_experiments(admin_user)
    assert {document.file for document in DOCUMENTS} == {path.name for path in DIRECTORY.iterdir()}
    for document in DOCUMENTS:
        experiment = Experiment.objects.get(name=document.name)
        assert (experiment.source, experiment.question) == (document.source, document.question)
        assert experiment.runs.filter(state=RunState.FINISHED, origin=Run.Origin.IMPORTED).exists()
    findings = Finding.objects.order_by("rule").values_list("rule", "experiment__name", "run__number")
    assert list(findings) == [
        ("aggregate", "Layouts of GPT from 1.7B to 1T", None),
        ("gpus-of-layout", "GPT 52B on 64 V100, on four days", 7),
        ("off-neighbours", "Megatron BERT 345M on 1 to 128 A100", 3),
        ("samples-of-iterations", "Megatron BERT 345M on 1 to 128 A100", 4),
    ]
    assert Client().get(f"/shared/{ReportLink.objects.get().token}/").status_code == 200
    waiting_jobs = PictureJob.objects.filter(state=PictureJob.State.WAITING)
    assert {job.run.experiment.name if job.run else "a report" for job in waiting_jobs} == {CASE.name, "a report"}

    before = Experiment.objects.count(), Run.objects.count(), Source.objects.count()
    content.demo_experiments(admin_user)
    assert (Experiment.objects.count(), Run.objects.count(), Source.objects.count()) == before
