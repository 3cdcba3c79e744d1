"""The job of Slurm, or the pod of Kubernetes, on the page of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from parlab.lab.models import Attempt, Node
from parlab.lab.services.members import cause_text
from parlab.pages.rows.batch_jobs import batch_job, without_job
from tests.conftest import place

ENVIRONMENT = {
    "hostname": "c1",
    "slurm": {
        "job": "12",
        "partition": "gpu",
        "nodes": "n[1-3]",
        "node": "n2",
        "shipped_by": "compute node",
        "script": "#!/bin/bash\n#SBATCH --nodes=3\n",
    },
}


def test_an_attempt_without_a_job_has_no_section() -> None:
    assert batch_job({}) is None
    assert batch_job({"slurm": {}}) is None
    assert batch_job({"slurm": "x"}) is None
    reported = {"kubernetes": {"pod": "train-0", "node": "gpu-0"}}
    assert batch_job(reported) is None, "a script that others started in a pod"
    assert without_job(reported) == reported


@pytest.mark.django_db
def test_the_page_of_a_run_shows_job_node_list_and_script(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    Attempt.objects.filter(pk=attempt.pk).update(environment=ENVIRONMENT)
    text = page.get(f"{attempt.run.get_absolute_url()}details/").content.decode()
    assert '<pre class="card log" id="submitted"' in text
    assert text.count("#SBATCH --nodes=3") == 1
    assert '<th scope="row">Nodes</th><td>n[1-3]</td>' in text
    assert '<th scope="row">Job</th><td>12</td>' in text
    assert '<th scope="row">Time to end</th><td>KillWait of Slurm at its limit or a cancel' in text


POD = {
    "pod": "parlab-a1-7-1-0",
    "namespace": "runs",
    "node": "n3",
    "image": "registry/node:2",
    "shipped_by": "compute node",
    "script": '{"kind": "Pod"}',
}


@pytest.mark.django_db
def test_the_page_of_a_run_shows_pod_node_and_manifest(page: Client, make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    Attempt.objects.filter(pk=attempt.pk).update(environment={"kubernetes": POD})
    text = page.get(f"{attempt.run.get_absolute_url()}details/").content.decode()
    assert '<th scope="row">Pod</th><td>parlab-a1-7-1-0</td>' in text
    assert '<th scope="row">Node</th><td>n3</td>' in text
    assert text.count("{&quot;kind&quot;: &quot;Pod&quot;}") == 1
    member = place(attempt, Node.objects.create(name="controller"), environment={"kubernetes": POD}, state="failed")
    assert member.place_name == "n3"


@pytest.mark.django_db
def test_the_cause_names_the_compute_node_and_not_the_login_node(make_attempt: Callable[..., Attempt]) -> None:
    attempt = make_attempt(state="running")
    login = Node.objects.create(name="login1")
    member = place(attempt, login, environment=ENVIRONMENT, reason="exit code 1", first_failed_rank=4, state="failed")
    assert cause_text(member, 3) == "node n2, rank 4: exit code 1"
    assert place(attempt, login, node_rank=1, state="lost", reason="gone").place_name == "login1"
