"""What a pod has that shares no volume with its controller: its order, the controller's word, a last message."""

from __future__ import annotations

from typing import Any

from runners.node.kubernetes import pods
from runners.node.kubernetes.manifests import CONTAINER
from runners.node.kubernetes.without_volume.order import END_FILE, PLACE, WORD_FILE, WORD_PLACE

MEMBER = "runners.node.kubernetes.without_volume.member"
ORDER, WORD = "parlab-order", "parlab-word"


def pod_patch(secret: str) -> dict[str, Any]:
    """Return what a pod has besides; `secret` is the name of the Secret with its order."""
    field = {"fieldPath": f"metadata.annotations['{pods.WORD}']"}
    volumes = [
        {"name": ORDER, "secret": {"secretName": secret, "defaultMode": 0o444}},
        {"name": WORD, "downwardAPI": {"items": [{"path": WORD_FILE, "fieldRef": field}]}},
    ]
    mounts = [
        {"name": name, "mountPath": str(place), "readOnly": True}
        for name, place in ((ORDER, PLACE), (WORD, WORD_PLACE))
    ]
    container = {"name": CONTAINER, "terminationMessagePath": END_FILE, "volumeMounts": mounts}
    # Its spool is there as long as the pod: a container whose first process was killed starts again and posts it.
    return {"spec": {"restartPolicy": "OnFailure", "containers": [container], "volumes": volumes}}
