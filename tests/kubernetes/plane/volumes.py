"""Volumes and variables of a pod, as its kubelet prepares them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kubernetes.plane.api import Api, Object
from tests.kubernetes.plane.containers import Mount, expanded


class NotReady(Exception):
    """What a pod waits for: a reason of Kubernetes and its message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


class Volumes:
    """Folders of the volumes of one pod."""

    def __init__(self, api: Api, pod: Object, directory: Path) -> None:
        self._api, self._pod, self._directory = api, pod, directory
        self._namespace = pod["metadata"]["namespace"]

    def prepare(self) -> dict[str, Mount]:
        """Return what each volume is; raises NotReady as long as one is missing."""
        return {each["name"]: self._prepared(each) for each in self._pod["spec"].get("volumes", [])}

    def refresh(self, pod: Object) -> None:
        """Write the fields of a pod again that has changed."""
        self._pod = pod
        for volume in pod["spec"].get("volumes", []):
            if "downwardAPI" in volume:
                self._write(volume["name"], self._place(volume["name"]), volume)

    def _prepared(self, volume: Object) -> Mount:
        if "emptyDir" in volume:
            return self._empty(volume)
        if "hostPath" in volume:
            return Mount("", self._host_path(volume["name"], volume["hostPath"]))
        if "persistentVolumeClaim" in volume:
            source = self._claimed(volume["persistentVolumeClaim"]["claimName"])
            return Mount("", source, volume["persistentVolumeClaim"].get("readOnly", False))
        place = self._place(volume["name"])
        sources = volume["projected"]["sources"] if "projected" in volume else [volume]
        for each in sources:
            self._write(volume["name"], place, each)
        return Mount("", place, is_read_only=True)

    def _empty(self, volume: Object) -> Mount:
        if volume["emptyDir"].get("medium") == "Memory":
            return Mount("", None, size=volume["emptyDir"].get("sizeLimit", "").replace("i", ""))
        return Mount("", self._place(volume["name"]))

    def _host_path(self, name: str, source: Object) -> Path:
        path = Path(source["path"])
        if source.get("type") in ("DirectoryOrCreate", "", None):
            path.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            raise _failed(name, f"hostPath type check failed: {path} is not a directory")
        return path

    def _claimed(self, claim: str) -> Path:
        path = f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims/{claim}"
        found = self._api.find(path)
        if found is None or not found["spec"].get("volumeName"):
            raise _failed(claim, f'persistentvolumeclaim "{claim}" not found or not bound')
        spec = self._api.get(f"/api/v1/persistentvolumes/{found['spec']['volumeName']}")["spec"]
        place = Path((spec.get("hostPath") or spec["local"])["path"])
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _write(self, name: str, place: Path, volume: Object) -> None:
        """Write the files of a secret, a configuration map, or fields of the pod."""
        mode = 0o644
        for kind in ("secret", "configMap", "downwardAPI"):
            if source := volume.get(kind):
                mode = source.get("defaultMode", mode)
                for path, content in self._files(name, kind, source):
                    target = place / path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    draft = target.with_name(f".{target.name}.new")
                    draft.write_bytes(content)
                    draft.chmod(mode)
                    draft.rename(target)

    def _files(self, name: str, kind: str, source: Object) -> Iterator[tuple[str, bytes]]:
        if kind == "downwardAPI":
            for item in source.get("items", []):
                yield item["path"], field(self._pod, item["fieldRef"]["fieldPath"], "").encode()
            return
        called = str(source.get("secretName") or source.get("name"))
        data = _data(self._api, self._namespace, kind, called)
        if data is None:
            if source.get("optional"):
                return
            raise _failed(name, f'{kind.lower()} "{called}" not found')
        for item in source.get("items") or [{"key": key, "path": key} for key in data]:
            yield item["path"], data[item["key"]]

    def _place(self, name: str) -> Path:
        place = self._directory / "volumes" / name
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        return place


def _failed(name: str, why: str) -> NotReady:
    return NotReady("FailedMount", f'MountVolume.SetUp failed for volume "{name}" : {why}')


def mounts_of(container: Object, volumes: dict[str, Mount]) -> list[Mount]:
    """Return the mounts of a container."""
    mounts = []
    for mount in container.get("volumeMounts", []):
        volume = volumes[mount["name"]]
        source = volume.source
        if source is not None and mount.get("subPath"):
            source = source / mount["subPath"]
            if not source.exists():
                source.mkdir(parents=True)
        read_only = volume.is_read_only or mount.get("readOnly", False)
        mounts.append(Mount(mount["mountPath"], source, read_only, volume.size))
    return mounts


def variables_of(api: Api, pod: Object, container: Object, address: str) -> dict[str, str]:
    """Return the variables that a container states; raises NotReady where one refers to what is missing."""
    variables: dict[str, str] = {}
    for source in container.get("envFrom", []):
        for kind, name in (("configMap", "configMapRef"), ("secret", "secretRef")):
            if reference := source.get(name):
                data = _required(api, pod, kind, reference)
                variables |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
    for entry in container.get("env", []):
        value = _value(api, pod, entry, address, variables)
        if value is not None:
            variables[entry["name"]] = value
    return variables


def _value(api: Api, pod: Object, entry: Object, address: str, before: dict[str, str]) -> str | None:
    source = entry.get("valueFrom")
    if source is None:
        return expanded(entry.get("value", ""), before)
    if reference := source.get("fieldRef"):
        return field(pod, reference["fieldPath"], address)
    for kind, name in (("secret", "secretKeyRef"), ("configMap", "configMapKeyRef")):
        if reference := source.get(name):
            data = _required(api, pod, kind, reference)
            return data[reference["key"]].decode() if reference["key"] in data else None
    return ""


def field(pod: Object, path: str, address: str) -> str:
    """Return a field of a pod, as `fieldRef` names it."""
    if path in ("status.podIP", "status.hostIP"):
        return address if path == "status.podIP" else "127.0.0.1"
    name, _, key = path.partition("[")
    value: Any = pod
    for part in name.split("."):
        value = (value or {}).get(part)
    if key:
        return str((value or {}).get(key[1:-2], ""))
    if isinstance(value, dict):  # labels or annotations as lines of a file
        return "\n".join(f"{each}={json.dumps(text)}" for each, text in sorted(value.items()))
    return str(value or "")


def _required(api: Api, pod: Object, kind: str, reference: Object) -> dict[str, bytes]:
    data = _data(api, pod["metadata"]["namespace"], kind, reference["name"])
    if data is None and not reference.get("optional"):
        raise NotReady("CreateContainerConfigError", f'{kind.lower()} "{reference["name"]}" not found')
    return data or {}


def _data(api: Api, namespace: str, kind: str, name: str) -> dict[str, bytes] | None:
    """Return the content of a secret or of a configuration map; None if there is none of this name."""
    found = api.find(f"/api/v1/namespaces/{namespace}/{kind.lower()}s/{name}")
    if found is None:
        return None
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    return {key: value.encode() for key, value in (found.get("data") or {}).items()}
