"""The pages of watches."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from parlab.lab.models import Attempt, Config, Event, InboxItem
from parlab.lab.services.access.tokens import token_create
from parlab.pages.reads.watches import SPARK_RESULTS
from parlab.watch import services
from parlab.watch.models import Alert, Result, Series, Watch
from tests.conftest import SMALL
from tests.pages.test_parts import offers

from .conftest import repeats


@pytest.fixture
def alerted(watched: Config, user: User, make_results: Callable[..., list[Attempt]]) -> Alert:
    watch = services.watch_create(name="Nightly", user=user, config=watched)
    make_results([*repeats(20), *repeats(5, level=0.11, seed=2)])
    (alert,) = services.watch_refresh(watch=watch)
    return alert


def test_an_empty_page_says_how_to_begin(page: Client) -> None:
    text = page.get("/watch/").content.decode()
    assert "No watches yet" in text
    assert 'action="/watch/create/"' in text


def test_a_watch_is_created_from_the_form(page: Client, watched: Config) -> None:
    fields = {
        "name": "Nightly",
        "config": watched.pk,
        "schedule": "daily",
        "first_at": "2030-01-31T03:00",
        "repeats": 2,
        "max_extra": 4,
    }
    answer = page.post("/watch/create/", fields, follow=True)
    watch = Watch.objects.get()
    assert (watch.key, watch.repeats, watch.max_extra) == (watched.digest, 2, 4)
    assert watch.next_at == datetime(2030, 1, 31, 3, tzinfo=UTC)
    assert "No results yet" in answer.content.decode()


def test_a_wrong_form_keeps_its_values(page: Client, watched: Config) -> None:
    answer = page.post("/watch/create/", {"name": "Nightly", "config": watched.pk, "schedule": "0 3 * * *"})
    assert answer.status_code == 422
    text = answer.content.decode()
    assert "is unknown; use hourly, daily, weekdays, weekly, 4-weekly" in text
    assert 'value="Nightly"' in text


def test_this_week_lists_open_alerts_first_and_opens_the_first_of_them(page: Client, alerted: Alert) -> None:
    text = page.get("/watch/").content.decode()
    assert text.index("Open <span>1") < text.index("Watched <span>1")
    assert f'class="wi on" href="{alerted.get_absolute_url()}"' in text
    assert re.search('<h2 class="h1">(Step time [+]|Throughput \N{MINUS SIGN})[0-9]', text)


def test_a_change_is_drawn_with_its_levels_and_commits(page: Client, alerted: Alert) -> None:
    text = page.get(alerted.get_absolute_url()).content.decode()
    assert text.count('class="ch-before" cx') == 20 + SPARK_RESULTS - 5 + SPARK_RESULTS + 20, (
        "in the figure, in its line, in that of the watch, and in that of the throughput"
    )
    assert text.count('<path class="ch-level') == 2
    assert "results in their order" in text
    Result.objects.filter(watch=alerted.watch).update(commit="a" * 40)
    Result.objects.filter(pk=alerted.first_bad_id).update(commit="b" * 40)
    text = page.get(alerted.get_absolute_url()).content.decode()
    assert 'with <span class="mono">bbbbbbb</span>' in text
    assert re.search('<text class="mono ch-commit"[^>]*>aaaaaaa</text>', text)


def test_a_configuration_without_a_watch_is_offered(
    page: Client, alerted: Alert, make_config: Callable[..., Config], make_attempt: Callable[..., Attempt]
) -> None:
    other = make_config(data={**SMALL, "launcher": {"timeout_s": 60}})
    make_attempt(state="finished", config=other)
    text = page.get("/watch/").content.decode()
    assert f"?config={other.pk}&amp;name=" in text
    assert f"?config={alerted.watch.config_id}&amp;" not in text
    form = page.get(f"/watch/?config={other.pk}&name=Another+question").content.decode()
    assert 'value="Another question"' in form
    assert f'<option value="{other.pk}" selected>' in form


def test_a_watch_shows_changes_measures_and_figures(page: Client, alerted: Alert) -> None:
    watch = alerted.watch
    text = page.get(watch.get_absolute_url()).content.decode()
    series = watch.series.get(measure="step_time")
    assert f"/watch/{watch.pk}/figures/{series.pk}.json" in text
    drawing = page.get(f"/watch/{watch.pk}/figures/{series.pk}.json").json()
    assert "grey lines are the levels" in drawing["caption"]
    assert drawing["figure"]["layout"]["shapes"]
    numbers = page.get(f"/watch/{watch.pk}/figures/{series.pk}.csv").content.decode()
    assert len(numbers.splitlines()) == 26


def test_points_have_the_names_of_their_fields(page: Client, alerted: Alert) -> None:
    Result.objects.filter(watch=alerted.watch).update(series="micro_batch_size 2, repeat 1")
    Series.objects.filter(watch=alerted.watch).update(point="zero_stage 3")
    text = page.get(alerted.watch.get_absolute_url()).content.decode()
    assert "<td>micro batch size 2, repeat 1</td>" in text
    assert "<td>ZeRO stage 3</td>" in text


def test_an_alert_is_answered_with_a_reason(page: Client, alerted: Alert) -> None:
    address = alerted.get_absolute_url()
    assert "Last good and first bad" in page.get(address).content.decode()
    refused = page.post(f"{address}answer/", {"answer": "expect"}, follow=True).content.decode()
    assert "reason is empty" in refused
    answered = page.post(f"{address}answer/", {"answer": "expect", "reason": "new loader"}, follow=True)
    assert "new loader" in answered.content.decode()
    alerted.refresh_from_db()
    assert alerted.state == Alert.State.EXPECTED


def test_people_without_permission_see_alerts_but_cannot_answer(viewer_client: Client, alerted: Alert) -> None:
    assert viewer_client.get(alerted.get_absolute_url()).status_code == 200
    assert viewer_client.post(f"{alerted.get_absolute_url()}answer/", {"answer": "expect"}).status_code == 403
    assert viewer_client.post("/watch/create/", {"name": "x"}).status_code == 403


@pytest.fixture
def viewer_client(user: User) -> Client:
    client = Client()
    client.force_login(User.objects.create_user("viewer", password="only looking here"))
    return client


def test_the_feeds_are_read_with_a_token(client: Client, alerted: Alert, user: User) -> None:
    assert client.get("/watch/feed.json").status_code == 302
    secret = token_create(user=user, name="reader", by=user)[1]
    headers = {"Authorization": f"Token {secret}"}
    feed = client.get("/watch/feed.json", headers=headers).json()
    assert feed["items"][0]["url"].endswith(alerted.get_absolute_url())
    root = ElementTree.fromstring(client.get("/watch/feed.atom", headers=headers).content)
    assert [entry.tag for entry in root].count("{http://www.w3.org/2005/Atom}entry") == 1


def test_a_history_is_imported_from_the_page(page: Client, user: User) -> None:
    watch = services.watch_create(name="Elsewhere", user=user, key="bert")
    rows = "\n".join(f"{1_700_000_000 + day},{0.1 if day < 15 else 0.12}" for day in range(25))
    file = SimpleUploadedFile("history.csv", f"time,step_time\n{rows}\n".encode())
    text = page.post(f"/watch/{watch.pk}/import/", {"file": file}, follow=True).content.decode()
    assert "Imported 25 results; 1 new alerts." in text


def test_a_watch_is_paused_and_deleted(page: Client, alerted: Alert) -> None:
    watch = alerted.watch
    page.post(f"/watch/{watch.pk}/pause/")
    watch.refresh_from_db()
    assert not watch.is_enabled
    page.post(f"/watch/{watch.pk}/delete/")
    assert not Watch.objects.exists()


def test_an_answer_leads_to_the_next_open_change(page: Client, alerted: Alert) -> None:
    assert 'name="next" value="week"' in page.get("/watch/").content.decode()
    assert 'name="next" value="week"' not in page.get(alerted.get_absolute_url()).content.decode()
    answer = page.post(
        f"{alerted.get_absolute_url()}answer/",
        {"answer": "expect", "reason": "new kernel", "next": "week"},
        follow=True,
    )
    assert answer.redirect_chain[-1][0] == "/watch/"
    text = answer.content.decode()
    assert "No open changes" in text
    assert "Answered this week <span>1" in text


def test_an_alert_shows_the_other_measures_of_the_same_results(page: Client, alerted: Alert) -> None:
    text = page.get(alerted.get_absolute_url()).content.decode()
    table = text[text.index('id="sizes"') :].split("</section>")[0]
    # The throughput changed with the step time, which is the headline and stands there alone.
    assert "Throughput" in table
    assert "Step time" not in table
    assert 'class="spark"' in table


def test_a_muted_watch_lists_changes_and_announces_none(
    page: Client, alerted: Alert, make_results: Callable[..., list[Attempt]]
) -> None:
    watch = alerted.watch
    assert InboxItem.objects.open().count() == 1
    answer = page.post(f"/watch/{watch.pk}/mute/", {"alert": alerted.pk})
    assert answer.headers["Location"] == alerted.get_absolute_url()
    assert InboxItem.objects.open().count() == 0
    events = Event.objects.filter(kind=Event.Kind.WATCH_ALERT).count()
    make_results([*repeats(20, level=0.11, seed=4), *repeats(20, level=0.2, seed=3)])
    services.watch_refresh(watch=Watch.objects.get())
    assert watch.alerts.count() == 2
    assert Event.objects.filter(kind=Event.Kind.WATCH_ALERT).count() == events
    assert "muted" in page.get(alerted.get_absolute_url()).content.decode()
    page.post(f"/watch/{watch.pk}/unmute/")
    assert InboxItem.objects.open().count() >= 1
    assert not Watch.objects.get().is_muted


def test_what_an_alert_and_its_watch_show_goes_to_a_dashboard(page: Client, alerted: Alert) -> None:
    offered = offers(page.get(alerted.get_absolute_url()).content.decode())
    assert {"change", "results", "measures", "step"} <= {offer["panel"] for offer in offered}
    offered += offers(page.get(alerted.watch.get_absolute_url()).content.decode())
    assert "figure" in {offer["panel"] for offer in offered}
    assert {page.post("/parts/add/", offer).status_code for offer in offered} == {200}
