"""The reports of a fresh demo: one of published tables, frozen and shared; one of imported runs, being written."""

from django.contrib.auth.models import User

from parlab.lab import selectors
from parlab.lab import services as lab
from parlab.lab.models import Experiment
from parlab.pages.views.reports import figures
from parlab.publishing.resolve import resolve
from parlab.reports.document import read
from parlab.reports.templates import TEMPLATES

TITLE = "What a slow network costs GPipe and 1F1B"
TEXT = """\
Three nodes, one GPU each, GPT-3 small with four layers on each node. Both schedules do the same work; only the network
between the nodes changes. The figures were published by others and are entered as data.

## On the slowest network

At 10 ms and 1 Gbit/s a step of 1F1B takes {{ value step_time_s
where="schedule=1f1b, network=delay 10ms bandwidth 1Gbps, micro_batch_size=1" decimals=2 }}, one of GPipe
{{ value step_time_s where="schedule=gpipe, network=delay 10ms bandwidth 1Gbps, micro_batch_size=1" decimals=2 }}:
in 1F1B every micro batch waits for a round trip.

{{ figure throughput where="network=delay 10ms bandwidth 1Gbps" }}

## All of it

{{ table pivot title="GPipe" rows=network columns=micro_batch_size value=step_time_s
  where="schedule=gpipe" unit=s decimals=2 }}

{{ table pivot title="1F1B" rows=network columns=micro_batch_size value=step_time_s
  where="schedule=1f1b" unit=s decimals=2 }}

{{ table runs title="What did not fit" where="state=oom" columns="Method=method, State=state, Reason=reason" }}
"""


def demo_report(experiment: Experiment, user: User) -> None:
    """Write and publish it; the beat hands its pictures to a worker as soon as there is one."""
    report = lab.report_create(title=TITLE, text=TEXT, experiment=experiment, user=user)
    content = resolve(read(report.text), report=report, figures=figures()).model_dump(mode="json")
    version = lab.report_publish(report=report, content=content, revision=report.revision, user=user)
    lab.pictures_request(user=user, version=version)
    lab.report_link_create(version=version, user=user)


def scaling_report(experiment: Experiment, user: User) -> None:
    """Begin a report of imported runs in their own shape; it stays to be written and published."""
    runs = selectors.experiment_runs(experiment, selectors.experiment_versions(experiment, ""))
    text = TEMPLATES["scaling"].text(experiment.name, selectors.run_records(runs))
    lab.report_create(title=experiment.name, text=text, experiment=experiment, user=user)
