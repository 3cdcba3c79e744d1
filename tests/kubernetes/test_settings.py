"""The settings of a controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.node.daemon_settings import parse, read_settings
from runners.node.jobs.pool import Pace
from runners.node.kubernetes.pool import Pool, Volume, read_pool

GIVEN = ("--kubernetes", "--namespace", "runs", "--volume", "claim:state/parlab", "--image", "node:1", "--slots", "64")
STATE = Path("/state")


def test_the_settings_of_a_controller_are_read() -> None:
    environment = {
        "PARLAB_KUBERNETES_OBJECTS": "job",
        "PARLAB_KUBERNETES_GRACE_S": "60",
        "PARLAB_KUBERNETES_NODE_S": "20",
    }
    assert read_pool(parse([*GIVEN, "--context", "gpu"]), environment, STATE) == Pool(
        "runs",
        Volume(claim="state", sub_path="parlab"),
        image="node:1",
        context="gpu",
        objects="job",
        pace=Pace(away_grace_s=60, poll_s=0.5, max_jobs=64),
        node_lost_s=20,
    )
    assert read_pool(parse([]), {}, STATE) is None
    pool = read_pool(parse(["--kubernetes", "--namespace", "runs", "--volume", "host"]), {}, STATE)
    assert pool is not None
    assert pool.volume == Volume(host_path="/state")
    given = ["--kubernetes", "--namespace", "runs", "--volume", "none", "--server", "https://parlab.example/"]
    apart = read_pool(parse(given), {"PARLAB_KUBERNETES_REST_S": "60"}, STATE)
    assert apart is not None
    assert (apart.volume.is_shared, apart.server, apart.rest_s) == (False, "https://parlab.example", 60)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--namespace", "runs"], {}, "--namespace runs has no effect without --kubernetes"),
        ([*GIVEN, "--slurm", "--partition", "gpu"], {}, "--kubernetes cannot be used with --slurm"),
        (["--kubernetes", "--volume", "host"], {}, "--kubernetes needs --namespace, not ''; name an existing one"),
        (["--kubernetes", "--namespace", "runs"], {}, "invalid --volume ''; use claim:NAME of a PersistentVolumeClaim"),
        (
            ["--kubernetes", "--namespace", "runs", "--volume", "none"],
            {},
            "--volume none needs --server, not ''; use the",
        ),
        ([*GIVEN, "--server", "http://a"], {}, "--server http://a has no effect with a shared volume; leave it out"),
        ([*GIVEN, "--run-as", "trainer"], {}, "--run-as cannot be used with --kubernetes"),
        (GIVEN, {"PARLAB_KUBERNETES_OBJECTS": "pod"}, "invalid PARLAB_KUBERNETES_OBJECTS 'pod'; use auto, jobset, job"),
        (GIVEN, {"PARLAB_KUBERNETES_SHIP": "x"}, "invalid PARLAB_KUBERNETES_SHIP 'x'; use auto"),
        (GIVEN, {"PARLAB_KUBERNETES_NODE_S": "-1"}, "invalid PARLAB_KUBERNETES_NODE_S '-1'; use a number of seconds"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_and_the_remedy(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    options = parse([*arguments, "--node", "controller"])
    given = {"REDIS_URL": "redis://127.0.0.1:1/0", "PARLAB_NODE_KEY": "k", **environment}
    with pytest.raises(ValueError) as error:
        read_settings(options, given)
    assert message in str(error.value)
