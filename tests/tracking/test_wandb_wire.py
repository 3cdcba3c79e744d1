"""W&B's protocol as its clients speak it: requests written here, against the views."""

from __future__ import annotations

import base64
import gzip
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client

from parlab.lab.models import Attempt, AuditEntry, InboxItem, Role, Run, TrackedRun, WandbArtifact, WandbRun
from parlab.lab.selectors.environments import environment_rows
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.projects import member_set, project_create
from parlab.lab.services.access.tokens import token_create
from parlab.pages.reads.experiment_series import experiment_series
from parlab.series import log, store

pytestmark = pytest.mark.django_db

UPSERT = "mutation UpsertBucket ($id: String, $name: String) { upsertBucket(input: {}) { bucket { id } inserted } }"
HISTORY, CONSOLE = "wandb-history.jsonl", "output.log"


class Sender:
    """A client of W&B with a token."""

    def __init__(self, token: str, writer: str = "") -> None:
        self.client = Client()
        self.headers = {"Authorization": f"Basic {base64.b64encode(f'api:{token}'.encode()).decode()}"}
        self.shared = {"X-Wandb-Client-Id": writer, "X-Wandb-Async-Client-Id": writer} if writer else {}

    def post(self, path: str, body: Any, **headers: str) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body)
        sent = {**self.headers, **self.shared, **headers}
        return self.client.post(path, data, content_type="application/json", headers=sent)

    def ask(self, query: str, **variables: Any) -> Any:
        response = self.post("/graphql", {"query": query, "variables": variables})
        assert response.status_code == 200, response.content
        return response.json()

    def begin(self, run_id: str = "abc", **variables: Any) -> Any:
        fields = {
            "name": run_id,
            "project": "p",
            "host": "h",
            "config": json.dumps({"lr": {"value": 0.1}}),
            **variables,
        }
        return self.ask(UPSERT, **fields)["data"]["upsertBucket"]

    def stream(self, files: dict[str, tuple[int, list[Any]]], run_id: str = "abc", **more: Any) -> None:
        body = {
            "files": {
                name: {"offset": offset, "content": [row if isinstance(row, str) else json.dumps(row) for row in rows]}
                for name, (offset, rows) in files.items()
            },
            **more,
        }
        packed = gzip.compress(json.dumps(body).encode())
        response = self.post(f"/files/ada/p/{run_id}/file_stream", packed, **{"Content-Encoding": "gzip"})
        assert response.status_code == 200, response.content

    def steps(self, first: int, end: int, run_id: str = "abc", **more: Any) -> None:
        self.stream({HISTORY: (first, [row(step) for step in range(first, end)])}, run_id, **more)


def row(step: int, **values: Any) -> dict[str, Any]:
    return {"_step": step, "_timestamp": 1_790_000_000.5 + step, "_runtime": step, "loss": float(step), **values}


@pytest.fixture
def sender(admin: User, settings: Any, tmp_path: Any) -> Sender:
    settings.ARTIFACTS_DIR = tmp_path / "artifacts"
    return Sender(token_create(user=admin, name="wandb", by=admin)[1])


def attempt_of(run_id: str = "abc") -> Attempt:
    return WandbRun.objects.get(run_id=run_id).tracked.run.current_attempt()


def losses(run_id: str = "abc", rank: int = 0) -> list[float]:
    return [float(value) for value in store.read(attempt_of(run_id).pk, "loss", rank=rank).values]


def console(run_id: str = "abc") -> list[str]:
    lines = b"".join(log.read_log(attempt_of(run_id).pk)).decode().splitlines()
    return [line for line in lines if not line.startswith('{"parlab":1,')]


def test_a_run_has_its_curve_settings_summary_console_and_state(sender: Sender) -> None:
    assert sender.begin(displayName="first", groupName="g", tags=["a", "b"])["inserted"]
    sender.stream(
        {
            HISTORY: (0, [row(0, deep={"er": 2}), '{"_step":1,"_timestamp":1790000001,"loss":NaN}']),
            "wandb-events.jsonl": (0, [{"_timestamp": 1_790_000_001.0, "system.cpu": 12.5}]),
            CONSOLE: (0, ["2026-11-27T01:54:21.318666 hello", "ERROR 2026-11-27T01:54:21.318666 world"]),
            "wandb-summary.json": (0, [{"_step": 1, "_timestamp": 1_790_000_001.0, "best": 0.5, "word": "x"}]),
        },
        complete=True,
        exitcode=0,
    )
    tracked = TrackedRun.objects.get()
    assert (tracked.name, tracked.run.state, attempt_of().exit_code) == ("first", "finished", 0)
    assert dict(tracked.parameters.values_list("key", "value")) == {"lr": "0.1"}
    assert str(losses()) == "[0.0, nan]"
    assert store.read(attempt_of().pk, "deep.er", rank=0).values.tolist() == [2.0]
    assert store.read(attempt_of().pk, "system/cpu", rank=0).values.tolist() == [12.5]
    assert console() == ["hello", "world"]
    assert tracked.metrics.get(key="best").value == 0.5
    tags = dict(tracked.tags.values_list("key", "value"))
    assert (tags["wandb.group"], tags["wandb.tags"], tags["summary.word"]) == ("g", "a, b", "x")


def test_what_is_sent_again_is_stored_once(sender: Sender) -> None:
    sender.begin()
    sender.steps(0, 3)
    sender.steps(0, 3)  # the answer was lost
    sender.steps(1, 5)
    sender.begin()  # the same process asks again
    sender.steps(0, 5)  # and an offline directory is synced
    assert losses() == [0, 1, 2, 3, 4]
    assert Run.objects.count() == 1


def test_the_last_line_of_the_console_may_be_written_again(sender: Sender) -> None:
    sender.begin()
    sender.stream({CONSOLE: (0, ["start", "10 %"])})
    sender.stream({CONSOLE: (1, ["20 %"])})
    assert console() == ["start"]
    sender.stream({CONSOLE: (1, ["100 %", "end"])}, complete=True, exitcode=0)
    sender.stream({CONSOLE: (1, ["100 %", "end"])}, complete=True, exitcode=0)
    assert console() == ["start", "100 %", "end"]


def test_a_resumed_run_goes_on_where_it_ended(sender: Sender) -> None:
    query = "query RunResumeStatus ($name: String!) { model { bucket { id } } }"
    assert sender.ask(query, project="p", name="abc")["data"]["model"]["bucket"] is None
    key = sender.begin()["bucket"]["id"]
    sender.steps(0, 3, complete=True, exitcode=1)
    assert attempt_of().state == "failed"
    bucket = sender.ask(query, project="p", name="abc")["data"]["model"]["bucket"]
    assert (bucket["id"], bucket["historyLineCount"]) == (key, 3)
    assert json.loads(json.loads(bucket["historyTail"])[0])["_step"] == 2
    sender.begin(id=key)
    assert attempt_of().state == "running"
    sender.steps(3, 5, complete=True, exitcode=0)
    assert (losses(), attempt_of().state) == ([0, 1, 2, 3, 4], "finished")


def test_a_resumed_run_whose_client_counts_its_console_anew_keeps_every_line_once(sender: Sender) -> None:
    key = sender.begin()["bucket"]["id"]
    sender.stream({CONSOLE: (0, ["2026-11-27T01:00:00.000000 part 0", "2026-11-27T01:00:01.000000 more"])})
    sender.stream({}, complete=True, exitcode=0)
    for part, offset in ((1, 0), (2, 0), (3, 6)):
        sender.begin(id=key)
        request = {CONSOLE: (offset, [f"2026-11-27T0{part}:30:00.000000 part {part}"])}
        sender.stream(request)
        sender.stream(request)
        sender.stream({CONSOLE: (offset + 1, [f"2026-11-27T0{part}:30:01.000000 end {part}"])}, complete=True)
        sender.begin(id=key)
        sender.stream(request)
    assert console() == ["part 0", "more", "part 1", "end 1", "part 2", "end 2", "part 3", "end 3"]


def test_a_script_started_again_under_the_same_id_is_another_run(sender: Sender) -> None:
    sender.begin()
    sender.steps(0, 3, complete=True, exitcode=0)
    assert sender.begin()["bucket"]["historyLineCount"] == 0
    sender.stream({HISTORY: (0, [row(0, other=1) | {"_timestamp": 1_790_009_999.0}])})
    assert losses() == [0]
    first = Run.objects.order_by("pk").first()
    assert first is not None
    assert store.read(first.current_attempt().pk, "loss", rank=0).values.tolist() == [0, 1, 2]


def test_settings_may_change(sender: Sender) -> None:
    sender.begin()
    sender.begin(config=json.dumps({"lr": {"value": 0.2}, "more": {"value": {"a": [1]}}}), host=None)
    assert dict(TrackedRun.objects.get().parameters.values_list("key", "value")) == {"lr": "0.2", "more.a": "[1]"}


def test_writers_of_a_shared_run_fill_a_rank_each(sender: Sender, admin: User) -> None:
    token = token_create(user=admin, name="other", by=admin)[1]
    first, second = Sender(token, "writer-1"), Sender(token, "writer-2")
    for writer in (first, second):
        writer.begin()
    first.steps(0, 2, complete=True, exitcode=0)
    assert attempt_of().state == "running"
    second.steps(0, 3, complete=True, exitcode=0)
    assert (losses(rank=0), losses(rank=1), attempt_of().state) == ([0, 1], [0, 1, 2], "finished")
    assert Run.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_writers_that_begin_a_shared_run_at_the_same_moment_report_to_one(sender: Sender, admin: User) -> None:
    token = token_create(user=admin, name="other", by=admin)[1]
    writers = [Sender(token, f"writer-{number}") for number in range(4)]

    def report(writer: Sender) -> None:
        try:
            writer.begin()
            writer.steps(0, 2, complete=True, exitcode=0)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(report, writers))
    assert (Run.objects.count(), [losses(rank=rank) for rank in range(4)]) == (1, [[0, 1]] * 4)


def test_an_alert_is_an_item_of_the_inbox(sender: Sender) -> None:
    sender.begin()
    query = "mutation NotifyScriptableRunAlert ($title: String!) { notifyScriptableRunAlert { success } }"
    names = {"entityName": "ada", "projectName": "p", "runName": "abc"}
    for text in ("12.5", "13.5"):
        sender.ask(query, title="Loss is high", text=text, severity="WARN", **names)
    item = InboxItem.objects.get(kind="run.alert")
    assert (item.data["title"], item.data["reason"], item.count) == ("Loss is high", "13.5", 2)


def test_what_is_no_number_is_kept_and_read_back(sender: Sender, page: Client) -> None:
    sender.begin()
    histogram = {"_type": "histogram", "bins": [0, 1, 2], "values": [3, 4]}
    sender.stream({HISTORY: (0, [row(0, text="a text", weights=histogram)])})
    query = "query HistoryPage ($run: String!) { project { run { history } } }"
    answer = sender.ask(query, project="p", run="abc", minStep=0, maxStep=10, pageSize=10)
    [read] = map(json.loads, answer["data"]["project"]["run"]["history"])
    assert (read["text"], read["weights"], read["loss"]) == ("a text", histogram, 0)
    shown = page.get(f"{Run.objects.get().get_absolute_url()}details/").content.decode()
    assert "Logged values" in shown
    assert "1 to 2: 4" in shown


def test_files_are_uploaded_with_the_token_and_read_by_a_signed_address(sender: Sender) -> None:
    sender.begin()
    query = "mutation CreateRunFiles ($files: [String!]!) { createRunFiles { files { uploadUrl } } }"
    answer = sender.ask(query, project="p", run="abc", files=["media/a b.png"])["data"]["createRunFiles"]
    address = answer["files"][0]["uploadUrl"].removeprefix("http://testserver")
    assert sender.client.put(address, b"\x89PNG").status_code == 401
    assert sender.client.put(address, b"\x89PNG", headers=sender.headers).status_code == 200
    assert sender.client.get(address).status_code == 401
    listing = sender.ask("query RunFiles ($name: String!) { project { run { files } } }", project="p", name="abc")
    [edge] = listing["data"]["project"]["run"]["files"]["edges"]
    signed = edge["node"]["directUrl"].removeprefix("http://testserver")
    response: Any = Client().get(signed)
    assert b"".join(response.streaming_content) == b"\x89PNG"
    assert response["Content-Disposition"].startswith("attachment")
    assert Client().get(signed.replace("a%20b", "c")).status_code == 401


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a\\b"])
def test_paths_out_of_a_run_are_refused(sender: Sender, name: str) -> None:
    sender.begin()
    query = "mutation CreateRunFiles ($files: [String!]!) { createRunFiles { files { uploadUrl } } }"
    assert "Invalid artifact path" in sender.ask(query, project="p", run="abc", files=[name])["errors"][0]["message"]


CREATE = "mutation CreateArtifact ($input: CreateArtifactInput!) { createArtifact { artifact { id } } }"
COMMIT = "mutation CommitArtifact ($artifactID: ID!) { commitArtifact { artifact { id } } }"
MADE = {"entityName": "ada", "projectName": "p", "runName": "abc", "artifactTypeName": "model",
        "artifactCollectionName": "m", "digest": "d1", "aliases": [{"alias": "best"}]}  # fmt: skip


def artifact_of(sender: Sender) -> tuple[str, str]:
    """Create a version; returns its ID, and the folder for its files."""
    sender.begin()
    key = sender.ask(CREATE, input=MADE)["data"]["createArtifact"]["artifact"]["id"]
    return key, f"/wandb/files/{TrackedRun.objects.get().uuid}/artifacts/m"


def test_an_artifact_is_visible_once_its_files_are_there(sender: Sender) -> None:
    key, folder = artifact_of(sender)
    manifest = json.dumps({"contents": {"w.bin": {"digest": "x", "size": 1}}})
    sender.client.put(f"{folder}/v0.manifest.json", manifest, headers=sender.headers)
    assert "'w.bin' of m:v0 is not uploaded" in sender.ask(COMMIT, artifactID=key)["errors"][0]["message"]
    sender.client.put(f"{folder}/v0/w.bin", b"1", headers=sender.headers)
    sender.ask(COMMIT, artifactID=key)
    again = sender.ask(CREATE, input=MADE)["data"]["createArtifact"]["artifact"]
    assert (again["id"], again["state"]) == (key, "COMMITTED")
    assert sorted(WandbArtifact.objects.get().aliases) == ["best", "latest"]


def test_deleting_a_run_is_in_the_audit_log_and_reporting_is_not(sender: Sender) -> None:
    key = sender.begin()["bucket"]["id"]
    sender.steps(0, 2)
    sender.ask("mutation DeleteRun ($id: ID!) { deleteRun { clientMutationId } }", id=key)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.route, entry.token) == ("delete", "wandb DeleteRun", "wandb")
    assert Run.objects.count() == 0
    assert sender.begin()["inserted"]
    sender.steps(0, 1)
    assert losses() == [0]


def test_operations_that_are_not_served_answer_with_their_name(sender: Sender) -> None:
    answer = sender.ask("mutation UpsertSweep ($id: ID) { upsertSweep { sweep { id } } }")
    assert answer["errors"][0]["message"].startswith("UpsertSweep is not served by parlab")
    assert "errors" in sender.ask("{ something }")


def test_who_may_not_write_is_refused(sender: Sender, admin: User, django_user_model: Any) -> None:
    sender.begin()
    guest = django_user_model.objects.create_user("guest")
    reader = Sender(token_create(user=guest, name="guest", by=guest)[1])
    limited = Sender(token_create(user=admin, name="reads", by=admin, scopes=["read"])[1])
    for each in (reader, limited):
        response = each.post("/graphql", {"query": UPSERT, "variables": {"name": "x", "project": "p"}})
        assert response.status_code == 403
        assert each.post("/files/ada/p/abc/file_stream", {}).status_code == 403
    disguised = {"query": UPSERT.replace("mutation", "query"), "variables": {"name": "x", "project": "p"}}
    assert "not served" in limited.post("/graphql", disguised).json()["errors"][0]["message"]
    assert Run.objects.count() == 1
    assert sender.client.post("/graphql", "{}", "application/json").status_code == 401
    wrong = Sender("parlab_wrong").post("/graphql", {"query": "query Viewer { viewer { id } }"})
    assert (wrong.status_code, "WANDB_API_KEY" in wrong.content.decode()) == (401, True)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"files": 3}', b'{"files": {"output.log": {"offset": -1, "content": []}}}',
             b'{"files": {"output.log": {"offset": 0, "content": [3]}}}',
             b'{"files": {"wandb-history.jsonl": {"offset": 0, "content": ["{"]}}}']
)  # fmt: skip
def test_bodies_that_make_no_sense_are_refused_or_change_nothing(sender: Sender, body: bytes) -> None:
    sender.begin()
    response = sender.post("/files/ada/p/abc/file_stream", body)
    assert response.status_code in (200, 400)
    assert losses() == []
    assert sender.post("/graphql", body).status_code in (200, 400)


def test_a_body_that_unpacks_to_too_much_is_refused(sender: Sender) -> None:
    sender.begin()
    packed = gzip.compress(b" " * (65 << 20))
    response = sender.post("/files/ada/p/abc/file_stream", packed, **{"Content-Encoding": "gzip"})
    assert response.status_code == 413


@pytest.mark.parametrize(
    "content", [b"[" + b"[]," * 600_000 + b"0]", b"[" + b"1.5," * 3_100_000 + b"0]"], ids=["lists", "numbers"]
)
def test_a_body_that_takes_many_times_its_size_once_read_is_refused_before(sender: Sender, content: bytes) -> None:
    sender.begin()
    packed = gzip.compress(b'{"files": %b}' % content)
    for path in ("/files/ada/p/abc/file_stream", "/graphql"):
        response = sender.post(path, packed, **{"Content-Encoding": "gzip"})
        assert (response.status_code, "send less" in response.json()["error"]) == (413, True)


@pytest.mark.parametrize("manifest", [b"[" * 100_000, b"[" + b"[]," * 600_000 + b"0]"], ids=["deep", "large"])
def test_a_manifest_that_cannot_be_read_is_an_error_and_commits_nothing(sender: Sender, manifest: bytes) -> None:
    key, folder = artifact_of(sender)
    sender.client.put(f"{folder}/v0.manifest.json", manifest, headers=sender.headers)
    response = sender.post("/graphql", {"query": COMMIT, "variables": {"artifactID": key}})
    assert "the manifest of m:v0" in response.json()["errors"][0]["message"]
    assert WandbArtifact.objects.get().state != WandbArtifact.State.COMMITTED


def test_while_the_disk_is_away_nothing_is_committed_and_the_answer_has_the_form_of_the_protocol(
    sender: Sender, settings: Any
) -> None:
    key, folder = artifact_of(sender)
    sender.client.put(f"{folder}/v0.manifest.json", b'{"contents": {}}', headers=sender.headers)
    there = settings.ARTIFACTS_DIR
    there.rename(there.with_name("away"))
    sender.client.raise_request_exception = False
    response = sender.post("/graphql", {"query": COMMIT, "variables": {"artifactID": key}})
    assert response.status_code == 503
    assert "The disk of the server does not answer" in response.json()["errors"][0]["message"]
    there.with_name("away").rename(there)
    assert "errors" not in sender.ask(COMMIT, artifactID=key)


@pytest.mark.parametrize(
    ("operation", "variables"),
    [
        ("mutation CreateArtifactFiles ($input: I!) { createArtifactFiles { files } }", {"artifactFiles": [1]}),
        ("mutation CreateArtifactFiles ($input: I!) { createArtifactFiles { files } }", {"artifactFiles": 5}),
        ("mutation AddAliases ($input: I!) { addAliases { success } }", {"aliases": 5}),
        ("query ArtifactFileURLs ($id: ID!) { artifact { files } }", {"entries": [1]}),
        ("query ArtifactFileURLs ($id: ID!) { artifact { files } }", {"id": "QXJ0aWZhY3Q6wrI="}),
        ("query RunFiles ($name: String) { project { run { files } } }", {"name": "abc", "fileCursor": "²"}),
    ],
)
def test_variables_of_another_type_are_errors_and_break_nothing(
    sender: Sender, operation: str, variables: dict[str, Any]
) -> None:
    key, _ = artifact_of(sender)
    given = {"id": key, "artifactID": key, "project": "p", **variables}
    if "$input" in operation:
        given = {"input": given}
    assert sender.post("/graphql", {"query": operation, "variables": given}).status_code in (200, 400, 404)


def test_the_address_that_a_client_prints_leads_to_the_run(sender: Sender, page: Client) -> None:
    sender.begin()
    assert page.get("/ada/p/runs/abc")["Location"] == Run.objects.get().get_absolute_url()
    assert page.get("/ada/p/runs/none").status_code == 404
    own = Run.objects.get().get_absolute_url()
    assert page.get(own.rstrip("/"))["Location"] == own


def test_series_are_drawn_over_the_axis_that_the_script_defines(sender: Sender) -> None:
    own = {"m": [{"1": "loss", "5": 2}, {"1": "tokens"}]}
    sender.begin(config=json.dumps({"_wandb": {"value": own}}))
    sender.stream({HISTORY: (0, [row(step, tokens=step * 1_000) for step in range(3)])})
    answer = experiment_series([Run.objects.get()], "loss")
    assert (answer["axis"], answer["runs"][0]["x"], answer["runs"][0]["y"]) == ("tokens", [0, 1_000, 2_000], [0, 1, 2])
    assert "axis" not in experiment_series([Run.objects.get()], "loss", "time")
    assert "axis" not in experiment_series([Run.objects.get()], "tokens")


def test_the_devices_that_a_client_states_are_those_of_the_attempt(sender: Sender) -> None:
    stated = {"os": "Linux-6.1", "host": "h100-3", "python": "CPython 3.12.4", "cpu_count": 64, "cudaVersion": "12.4"}
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memoryTotal": "85520809984", "cudaCores": 16896, "architecture": "Hopper"}
    first = {**stated, "gpu": gpu["name"], "gpu_count": 2, "gpu_nvidia": [gpu, gpu]}
    own = {"e": {"w1": first, "w2": {"host": "other"}}}
    sender.begin(config=json.dumps({"lr": {"value": 0.1}, "_wandb": {"value": own}}))
    run = Run.objects.get()
    environment = run.current_attempt().environment
    gpus = [{"index": index, "name": gpu["name"], "memory_bytes": 85520809984} for index in range(2)]
    assert (environment["gpus"], environment["hostname"], environment["cpu_cores"]) == (gpus, "h100-3", 64)
    assert environment["cuda"] == "12.4"
    assert dict(environment_rows(environment))["Host"] == "h100-3"
    assert [row.key for row in run.tracked.parameters.all()] == ["lr"]


@pytest.mark.parametrize("own", [[], {"e": 1}, {"e": {"w": 2}}, {"e": {"w": {"gpu_nvidia": [3], "cpu_count": True}}}])
def test_what_is_no_machine_is_left(sender: Sender, own: Any) -> None:
    assert sender.begin(config=json.dumps({"_wandb": {"value": own}}))
    assert "gpus" not in Run.objects.get().current_attempt().environment


def test_new_tokens_have_no_dash(admin: User) -> None:
    # Clients take what is before a dash for the name of a host, and count the characters after it.
    for number in range(15):
        secret = token_create(user=admin, name=f"token {number}", by=admin)[1]
        assert re.fullmatch(r"parlab_\w{43}", secret)


@pytest.fixture
def other(db: None) -> Sender:
    """An operator who owns nothing."""
    groups_refresh()
    user = User.objects.create_user("other", password="not my run at all")
    user.groups.add(Group.objects.get(name="operator"))
    return Sender(token_create(user=user, name="wandb", by=user)[1])


def test_an_operator_changes_no_run_of_another_person(sender: Sender, other: Sender) -> None:
    key = sender.begin()["bucket"]["id"]
    sender.stream({HISTORY: (0, [row(0)])})
    refused = [
        other.post("/graphql", {"query": UPSERT, "variables": {"name": "abc", "project": "p", "host": "h"}}),
        other.post("/graphql", {"query": UPSERT, "variables": {"id": key, "displayName": "mine"}}),
        other.post("/graphql", {"query": "mutation DeleteRun ($id: ID!) { d }", "variables": {"id": key}}),
        other.post("/files/me/p/abc/file_stream", {"files": {HISTORY: {"offset": 1, "content": ["{}"]}}}),
        other.client.put(f"/wandb/files/{key}/x.txt", b"x", headers=other.headers),
    ]
    assert [response.status_code for response in refused] == [403] * len(refused)
    assert all("belongs to another person" in response.content.decode() for response in refused)
    assert len(losses()) == 1
    read = other.ask("query Run ($name: String!) { project { run { id } } }", project="p", name="abc")
    assert read["data"]["project"]["run"]["name"] == "abc", "reading is allowed"


def test_a_token_of_a_project_finds_nothing_in_others(sender: Sender, admin: User, other: Sender) -> None:
    user = User.objects.get(username="other")
    project = project_create(name="Closed", user=admin)
    member_set(project=project, user=user, role=Role.OPERATOR)
    inside = Sender(token_create(user=user, name="inside", by=user, project=project)[1])
    assert inside.begin()["inserted"]
    assert sender.begin()["inserted"], "the same names in the shared project are another run"
    runs = WandbRun.objects.order_by("pk")
    assert [run.experiment.project.name for run in runs] == ["Closed", "Shared"]
    outside = other.ask("query Run ($name: String!) { project { run { id } } }", project="p", name="abc")
    assert outside["data"]["project"]["run"]["id"] == runs[1].tracked.uuid


def test_the_entity_is_the_project_of_the_token() -> None:
    """As with W&B's teams; in the shared project it is the person, who sees no word of projects."""
    ada = User.objects.create_superuser("ada")
    vision = project_create(name="Vision", user=ada)
    of_vision = Sender(token_create(user=ada, name="vision", by=ada, project=vision)[1])
    shared = Sender(token_create(user=ada, name="shared", by=ada)[1])
    query = "query Viewer { viewer { entity } }"
    assert [each.ask(query)["data"]["viewer"]["entity"] for each in (of_vision, shared)] == ["vision", "ada"]
    of_vision.begin("v1", entity="vision")
    shared.begin("s1", entity="ada")
    places = {run.experiment.project.slug: run.experiment.name for run in Run.objects.select_related("experiment")}
    assert places == {"vision": "p", "shared": "p"}
    astray = shared.post("/graphql", {"query": UPSERT, "variables": {"name": "s2", "project": "p", "entity": "vision"}})
    assert astray.status_code == 403
    assert "the token reaches project shared, not vision; create a token of vision" in astray.content.decode()
    browser = Client()
    browser.force_login(ada)
    for entity, run in (("vision", "v1"), ("ada", "s1")):
        slug = Run.objects.get(tracked__name=run).experiment.slug
        assert slug in browser.get(f"/{entity}/p/runs/{run}")["Location"]
