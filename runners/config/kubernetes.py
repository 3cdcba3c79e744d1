"""What a run asks of Kubernetes: the fields of section kubernetes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .sections import Argument, Section

ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$", max_length=253)]
LabelKey = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$",
        max_length=317,
    ),
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$", max_length=63)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,9})?(m|k|[KMGTP]i?)?$")]
Directory = Annotated[str, Field(pattern=r"^/[^:,\x00-\x1f]{1,1000}$")]


class Toleration(Section):
    """A taint of nodes that the pods accept."""

    key: LabelKey | None = None
    """Key of the taint. Empty: every key."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Exists: any value; Equal: that of value."""
    value: LabelValue | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Empty: every effect."""


class KubernetesSection(Section):
    """What a run asks of Kubernetes, in a pool whose pods come from there."""

    image: Annotated[str, Field(pattern=r"^[a-z0-9][A-Za-z0-9_./:@+-]{0,499}$")] | None = None
    """Image of the pods; one without parlab gets it from the image of the pool. Empty: the image of the pool."""
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./][A-Za-z0-9_./+-]{0,499}$")] | None = None
    """Python of that image, with the packages of the engine. Empty: that of the pool."""
    image_pull_secret: ObjectName | None = None
    """Secret with the password of the registry. Empty: none, or that of the service account."""
    cpu: Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)] | None = None
    """Cores of each pod. Empty: launcher.threads_per_rank for each rank."""
    memory_mib: Annotated[int, Field(ge=16, le=2**30)] | None = None
    """CPU memory of each pod, as request and limit. Empty: no limit."""
    gpu_resource: Literal["nvidia.com/gpu", "amd.com/gpu"] = "nvidia.com/gpu"
    """Resource that a GPU is; cluster.device cuda asks for one for each rank."""
    resources: Annotated[dict[LabelKey, Quantity], Field(max_length=20)] = {}
    """Further resources of each pod, like {"rdma/hca_shared_devices_a": "1"}."""
    shared_memory_gib: Annotated[float, Field(gt=0, le=4096, allow_inf_nan=False)] | None = None
    """Size of /dev/shm, for NCCL and data loaders; it counts as memory. Empty: 64 MiB, the default of runtimes."""
    claims: Annotated[dict[ObjectName, Directory], Field(max_length=20)] = {}
    """Claims of volumes and where the ranks see them, like {"datasets": "/data"}."""
    secrets: Annotated[dict[ObjectName, Directory], Field(max_length=20)] = {}
    """Secrets and where the ranks see them as files, like {"hub-token": "/secrets/hub"}."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=20)] = {}
    """Labels that the nodes must have, like {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}."""
    exclude: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,-]{1,4000}$")] | None = None
    """Nodes that the pods must not use, separated by commas; parlab adds those that are bad."""
    tolerations: Annotated[list[Toleration], Field(max_length=20)] = []
    """Taints that the pods accept, like [{"key": "nvidia.com/gpu"}]."""
    topology: LabelKey | None = None
    """Label of nodes whose value all pods of a run share, like topology.kubernetes.io/zone. Empty: any nodes."""
    topology_is_required: bool = False
    """Wait for such nodes. Otherwise they are only preferred."""
    priority_class: ObjectName | None = None
    """Priority class. Empty: the default of the cluster."""
    service_account: ObjectName | None = None
    """Account of the pods. Empty: the default of the namespace, without a token."""
    queue: ObjectName | None = None
    """Queue that admits the run. Empty: none."""
    queue_system: Literal["kueue", "volcano"] = "kueue"
    """System of that queue."""
    ttl_s: Annotated[int, Field(ge=0, le=30 * 86400)] = 600
    """Time that ended pods stay, for kubectl logs and describe."""
    environment: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$")], Argument], Field(max_length=200)
    ] = {}
    """Variables of the pods, like {"NCCL_IB_HCA": "mlx5"}."""
    patch: Annotated[dict[str, Any], Field(max_length=50)] = {}
    """For experts: merged into the pod, like {"spec": {"hostNetwork": true}}; lists of names are merged by name."""
