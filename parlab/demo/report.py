"""Reports of a fresh demo: a published and shared report of tables, and a draft about imported runs."""

from django.contrib.auth.models import User

from parlab.lab.models import Experiment
from parlab.lab.selectors.experiments import experiment_runs, experiment_versions
from parlab.lab.selectors.records import run_records
from parlab.lab.services.pictures import pictures_request
from parlab.lab.services.public_links import link_create
from parlab.lab.services.reports import report_create, report_publish
from parlab.publishing.resolve import resolve
from parlab.reports.document import read
from parlab.reports.templates import TEMPLATES

TITLE = "GPipe and 1F1B on a slow network"
TEXT = """\
GPT-3 small runs on three nodes with one GPU and four layers each. Both schedules do the same work; only the network
between the nodes differs. All results are published measurements.

## On the slowest network

At 10 ms and 1 Gbit/s, a step of 1F1B takes {{ value step_time_s
where="schedule=1f1b, network=delay 10ms bandwidth 1Gbps, micro_batch_size=1" decimals=2 }} and a step of GPipe
{{ value step_time_s where="schedule=gpipe, network=delay 10ms bandwidth 1Gbps, micro_batch_size=1" decimals=2 }}.
In 1F1B, every micro batch waits for a network round trip.

{{ figure throughput where="network=delay 10ms bandwidth 1Gbps" }}

## All networks

{{ table pivot title="GPipe" rows=network columns=micro_batch_size value=step_time_s
  where="schedule=gpipe" unit=s decimals=2 }}

{{ table pivot title="1F1B" rows=network columns=micro_batch_size value=step_time_s
  where="schedule=1f1b" unit=s decimals=2 }}

{{ table runs title="Out of memory" where="state=oom" columns="Method=method, State=state, Reason=reason" }}
"""


def demo_report(experiment: Experiment, user: User) -> None:
    """Write and publish the report; its pictures are drawn as soon as a worker runs."""
    report = report_create(title=TITLE, text=TEXT, experiment=experiment, user=user)
    content = resolve(read(report.text), report=report).model_dump(mode="json")
    version = report_publish(report=report, content=content, revision=report.revision, user=user)
    pictures_request(user=user, version=version)
    link_create(subject=version, user=user)


def scaling_report(experiment: Experiment, user: User) -> None:
    """Create the draft of a report about imported runs from the template `scaling`."""
    runs = experiment_runs(experiment, experiment_versions(experiment, ""))
    text = TEMPLATES["scaling"].text(experiment.name, run_records(runs))
    report_create(title=experiment.name, text=text, experiment=experiment, user=user)
