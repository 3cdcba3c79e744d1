"""The manifests of the server, and the examples, are accepted by a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.files import DEPLOY
from tests.kubernetes.examples import EXAMPLES, example
from tests.kubernetes.plane.api import Api, Object
from tests.kubernetes.plane.cluster import Plane

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


def manifests() -> Iterator[Object]:
    """Yield the objects of the server, namespace first."""
    for name in ("settings", "stores", "server", "pool-rbac", "pool"):
        yield from yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())


def unknown_fields(stated: object, held: object, path: str = "") -> Iterator[str]:
    """Yield what a manifest states and the server has left out."""
    if isinstance(stated, dict):
        for name, value in stated.items():
            if not isinstance(held, dict) or name not in held:
                yield f"{path}.{name}"
            else:
                yield from unknown_fields(value, held[name], f"{path}.{name}")
    elif isinstance(stated, list) and isinstance(held, list):
        for index, value in enumerate(stated):
            yield from unknown_fields(value, held[index] if index < len(held) else None, f"{path}[{index}]")


def applied(api: Api, manifest: Object, namespace: str = "default") -> Object:
    """Create a namespace, and let the server check everything else."""
    return api.apply(manifest, namespace, is_dry=manifest["kind"] != "Namespace")


def test_the_manifests_of_the_server_apply_without_a_field_that_is_left_out(plane: Plane) -> None:
    kinds = set()
    for manifest in manifests():
        held = applied(plane.api, manifest)
        kinds.add(manifest["kind"])
        left_out = set(unknown_fields(manifest, held)) - {".stringData"}  # becomes data
        assert not left_out, manifest["metadata"]["name"]
    assert {"Deployment", "StatefulSet", "Ingress", "PersistentVolumeClaim", "Secret", "Role"} <= kinds


def test_the_example_of_kueue_applies_but_for_what_is_newer_than_the_server(plane: Plane, namespace: str) -> None:
    manifest = example("kueue")
    left_out = set(unknown_fields(manifest, applied(plane.api, manifest, namespace)))
    # Jobs that are suspended came with 1.21.
    assert left_out == {".spec.suspend"}


def test_the_other_examples_need_their_operators(plane: Plane) -> None:
    for path in EXAMPLES.glob("*.yaml"):
        if path.stem not in ("kueue", "jobset"):  # the tests have a definition of JobSets
            with pytest.raises(LookupError, match="is not served"):
                plane.api.apply(example(path.stem))
