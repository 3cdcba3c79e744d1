"""deploy/kubernetes/pool-rbac.yaml grants what a controller needs, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import kubernetes
import pytest
import yaml

from runners.node.jobs.state import JobStateDir
from runners.node.keeper import Limits
from runners.node.kubernetes.api import Api
from runners.node.kubernetes.keeper import KubernetesKeeper
from runners.node.kubernetes.pool import Pool, Volume
from runners.node.kubernetes.rights import RIGHTS, WITHOUT_VOLUME, missing
from runners.wire.protocol import RunSpec
from tests.kubernetes.controllers import config
from tests.kubernetes.plane.api import Object
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for
from tests.runners.conftest import NODE

ROLES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "pool-rbac.yaml"
ONLY_WITH = {
    "jobs": "job",
    "jobsets": "jobset",
    "localqueues": "queue",
    "podgroups": "volcano",
    "secrets": WITHOUT_VOLUME,
}
"""Resource -> what alone needs rights to it."""
NAMESPACE, ACCOUNT = "parlab-runs", "parlab-pool"


def manifests() -> Iterator[Object]:
    """Yield the objects of the file."""
    yield from yaml.safe_load_all(ROLES.read_text())


def role() -> Object:
    """Return the role of the file."""
    [found] = [each for each in manifests() if each["kind"] == "Role"]
    return found


def granted(role: Object) -> list[tuple[str, str, str]]:
    """Return group, resource and verb of each right of a role."""
    rows = [
        (group, resource, rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    return [(group, resource, verb) for group, resource, verbs in rows for verb in verbs]


def only_with(right: tuple[str, str, str]) -> str:
    """Return what alone needs a right; empty: every pool."""
    return WITHOUT_VOLUME if right[1:] == ("pods", "patch") else ONLY_WITH.get(right[1], "")


def without(right: tuple[str, str, str]) -> Object:
    """Return the role without one right."""
    changed = copy.deepcopy(role())
    for rule in changed["rules"]:
        if rule["apiGroups"] == [right[0]] and rule["resources"] == [right[1]]:
            rule["verbs"].remove(right[2])
    changed["rules"] = [rule for rule in changed["rules"] if rule["verbs"]]
    return changed


def test_the_role_has_the_rights_that_the_controller_names_in_one_namespace() -> None:
    assert sorted(granted(role())) == sorted(
        (each.group, each.resource, verb) for each in RIGHTS for verb in each.verbs
    )
    kinds = [each["kind"] for each in manifests()]
    assert kinds == ["Namespace", "ServiceAccount", "Role", "RoleBinding"]
    assert {each["metadata"].get("namespace") for each in manifests()} == {None, NAMESPACE}


@pytest.fixture(scope="module")
def account(running_plane: Plane) -> Api:
    """The API as the account of the file uses it."""
    for manifest in manifests():
        running_plane.api.apply(manifest, NAMESPACE)
    config = str(running_plane.config_of(NAMESPACE, ACCOUNT))
    return Api(kubernetes.config.new_client_from_config(config_file=config), NAMESPACE)


@pytest.mark.slow
@pytest.mark.kubernetes
def test_each_right_that_is_removed_is_named(plane: Plane, account: Api) -> None:
    wait_for(lambda: not any(missing(account, each) for each in ("pods", "job", "jobset")), "the role is known")
    for right in granted(role()):
        objects = only_with(right) or "pods"
        plane.api.apply(without(right), NAMESPACE)
        wait_for(lambda: missing(account, objects), f"{right} is missing")  # noqa: B023
        assert missing(account, objects) == [f"{right[2]} {right[1]}"]
    plane.api.apply(role(), NAMESPACE)
    wait_for(lambda: not missing(account, "pods"), "the role is whole")


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.parametrize("right", [right for right in granted(role()) if not only_with(right)])
def test_a_controller_states_the_right_that_it_lacks(
    plane: Plane, account: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture, right: tuple[str, str, str]
) -> None:
    plane.api.apply(without(right), NAMESPACE)
    wait_for(lambda: missing(account, "pods"), f"{right} is missing")
    pool = Pool(NAMESPACE, Volume(host_path=str(tmp_path)), image="parlab-node:test", objects="pods")
    keeper = KubernetesKeeper(
        JobStateDir(tmp_path), hardware={}, limits=Limits(), command=lambda *_: [], pool=pool, api=account
    )
    keeper.start(RunSpec(run=1, attempt=1, node=NODE, config=config()))
    words = f"may not {right[2]} {right[1]} in {NAMESPACE}"

    def stated() -> bool:
        keeper.watch()
        return words in caplog.text

    try:
        wait_for(stated, words, 30)
    finally:
        keeper._cluster.stop()
        plane.api.apply(role(), NAMESPACE)
        wait_for(lambda: not missing(account, "pods"), "the role is whole")


@pytest.mark.slow
@pytest.mark.kubernetes
def test_the_account_may_do_nothing_outside_of_its_namespace(plane: Plane, account: Api) -> None:
    from runners.node.kubernetes.api import KubernetesRefused

    for path in ("/api/v1/nodes", "/api/v1/namespaces/default/pods", f"/api/v1/namespaces/{NAMESPACE}/secrets"):
        with pytest.raises(KubernetesRefused) as refused:
            account.get(path)
        assert refused.value.is_forbidden
