"""A queued run says why it waits and what to do."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from parlab.fleet.services import waiting_reason, waiting_reasons
from parlab.lab.models import Attempt, Config, Node, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
from tests.conftest import SMALL, place

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(make_attempt: Callable[..., Attempt]) -> Run:
    return make_attempt(state="queued").run


def test_no_node_ever(run: Run) -> None:
    assert "python -m runners.node.daemon --pool default" in waiting_reason(run)


def test_no_node_online(run: Run, make_node: Callable[..., Node]) -> None:
    make_node("gpu1", online=False)
    assert "gpu1 was last seen 5\xa0minutes ago" in waiting_reason(run)


def test_only_disabled_nodes(run: Run, make_node: Callable[..., Node]) -> None:
    make_node("gpu1", is_enabled=False)
    make_node("gpu2", online=False)
    assert waiting_reason(run) == ("every online node of pool default is disabled: gpu1; enable one in the admin")


def test_too_few_gpus(make_config: Callable[..., Config], make_node: Callable[..., Node], user: User) -> None:
    make_node("gpu1", gpus=1)
    config = make_config(data={**SMALL, "cluster": {"device": "cuda"}})
    (run,) = config_launch(config=config, user=user).created
    assert waiting_reason(run).startswith("needs 2 GPUs on one node; in pool default, gpu1 has the most: 1")


def test_a_container_needs_its_runtime_and_an_image_that_the_owner_allows(
    make_config: Callable[..., Config], make_node: Callable[..., Node], user: User
) -> None:
    container = {"runtime": "podman", "image": "team/torch:1"}
    config = make_config(data={**SMALL, "launcher": {"container": container}})
    run = config_launch(config=config, user=user).created[0]
    node = make_node("gpu1", abilities={"engines": ["pipeline"], "launchers": ["torchrun"]})
    reason = "node gpu1 allows no containers; start its daemon with --images"
    assert waiting_reason(run).startswith(reason)
    node.abilities |= {"images": ["other/"], "containers": []}
    node.save()
    assert waiting_reason(run).startswith("node gpu1 allows images that begin with other/;")
    node.abilities |= {"images": ["team/"], "containers": ["apptainer"]}
    node.save()
    assert waiting_reason(run).startswith("node gpu1 has no container runtime podman (it has apptainer); install it")
    node.abilities |= {"containers": ["podman"]}
    node.save()
    assert waiting_reason(run) == "will be sent to a node within seconds"


def test_busy_with_runs_named_by_experiment_where_it_is_another(
    run: Run, make_node: Callable[..., Node], user: User
) -> None:
    other = experiment_create(name="Other", owner=user)
    config = config_save(experiment=other, data=SMALL, sweep={}, user=user)
    (busy,) = config_launch(config=config, user=user).created
    busy.attempts.update(state="running")
    place(busy.current_attempt(), make_node("gpu1"))
    assert waiting_reason(run) == "node gpu1 is busy with Other #1"


def test_a_free_node(run: Run, make_node: Callable[..., Node]) -> None:
    make_node("gpu1")
    assert waiting_reason(run) == "will be sent to a node within seconds"


def test_a_run_that_does_not_wait(make_attempt: Callable[..., Attempt]) -> None:
    assert waiting_reason(make_attempt(state="running").run) == ""


def test_a_list_of_runs_costs_two_queries(
    make_config: Callable[..., Config],
    make_node: Callable[..., Node],
    user: User,
    django_assert_num_queries: Any,
) -> None:
    make_node("gpu1")
    runs = config_launch(config=make_config(sweep={"train.seed": list(range(20))}), user=user).created
    runs[0].attempts.update(state="running")
    place(runs[0].current_attempt(), Node.objects.get())
    with django_assert_num_queries(2):
        reasons = waiting_reasons(runs)
    assert set(reasons.values()) == {"node gpu1 is busy with #1"}
