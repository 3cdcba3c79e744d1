"""Rows for reports: a sweep with results, a report about it, and browsers of users."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.test import Client

from parlab.lab.models import Attempt, Config, Experiment, Report, ReportVersion, Run
from parlab.lab.services.reports import report_create
from parlab.publishing.publish import publish
from tests.pages.conftest import SWEEP, finish


@pytest.fixture
def reader(user: User) -> Client:
    """A browser of a user with read access only."""
    client = Client()
    client.force_login(get_user_model().objects.create_user("reader", password="only looking here"))
    return client


@pytest.fixture
def four_runs(make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]) -> list[Run]:
    """The four points of a sweep, finished; the third is the fastest."""
    config = make_config(sweep=SWEEP)
    runs = []
    for point, step_time_s in zip(config.points(), (0.5, 0.4, 0.2, 0.3), strict=True):
        assert point.config is not None
        attempt = make_attempt(config=config, point=point.values)
        runs.append(finish(attempt, step_time_s, resolved=point.config.resolved()))
    return runs


@pytest.fixture
def make_report(experiment: Experiment, user: User) -> Callable[[str], Report]:
    """Write a report about the experiment: make_report("{{ figure throughput }}")."""

    def make(text: str) -> Report:
        return report_create(title="What we found", text=text, experiment=experiment, user=user)

    return make


@pytest.fixture
def make_version(make_report: Callable[[str], Report], user: User) -> Callable[[str], ReportVersion]:
    """Publish a report with a text."""

    def make(text: str) -> ReportVersion:
        report = make_report(text)
        return publish(report=report, revision=report.revision, user=user)

    return make
