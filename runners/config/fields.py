"""The sections of a run together, and the sizes that follow from them."""

from __future__ import annotations

from .device_map import map_problems
from .devices import DEVICES, Device
from .engines import ENGINES, Engine, training_engine
from .kubernetes import KubernetesSection
from .launchers import LAUNCHERS, Launcher
from .sections import (
    AutotuningSection,
    CapacitySection,
    CheckpointSection,
    ClusterSection,
    CollectivesSection,
    CommandSection,
    EmulationSection,
    LauncherSection,
    ModelSection,
    NetworkSection,
    ParallelSection,
    ProfileSection,
    Section,
    ShardingSection,
    SlurmSection,
    TrainSection,
)


class RunFields(Section):
    """All sections, each valid by itself; RunConfig also checks whether they fit together."""

    model: ModelSection = ModelSection()
    """The network that is trained."""
    train: TrainSection = TrainSection()
    """The work of one iteration."""
    parallel: ParallelSection = ParallelSection()
    """How the work is split."""
    cluster: ClusterSection = ClusterSection()
    """Where it runs."""
    slurm: SlurmSection = SlurmSection()
    """What it asks of Slurm."""
    kubernetes: KubernetesSection = KubernetesSection()
    """What it asks of Kubernetes."""
    network: NetworkSection = NetworkSection()
    """The links between ranks."""
    emulation: EmulationSection = EmulationSection()
    """Times of train.compute emulated."""
    collectives: CollectivesSection = CollectivesSection()
    """What engine allreduce times."""
    sharding: ShardingSection = ShardingSection()
    """Stages, shards and devices for engine sharding."""
    capacity: CapacitySection = CapacitySection()
    """What engine capacity looks for."""
    autotuning: AutotuningSection = AutotuningSection()
    """What engine autotuning lets DeepSpeed search."""
    command: CommandSection = CommandSection()
    """What engine command starts."""
    profile: ProfileSection = ProfileSection()
    """What torch.profiler records."""
    checkpoint: CheckpointSection = CheckpointSection()
    """When the ranks save their state."""
    launcher: LauncherSection = LauncherSection()
    """How processes are started."""

    @property
    def engine(self) -> Engine:
        """Row of `parallel.engine`."""
        return ENGINES[self.parallel.engine]

    @property
    def training_engine(self) -> Engine:
        """Engine that trains: for a search, that of its trials."""
        return training_engine(self.engine, self.capacity.engine)

    @property
    def device(self) -> Device:
        """Row of `cluster.device`."""
        return DEVICES[self.cluster.device]

    @property
    def starter(self) -> Launcher:
        """Row of `launcher.kind`."""
        return LAUNCHERS[self.launcher.kind]

    @property
    def has_checkpoints(self) -> bool:
        """Whether its attempts share a folder: those of engines that save, and of commands, which may."""
        return self.checkpoint.is_on or self.engine.is_external

    @property
    def world_size(self) -> int:
        """Ranks of the run: TP·PP·CP·DP, or the number of devices of a device map."""
        parallel = self.parallel
        if self.engine.has_device_map and self.sharding.device_mapping and not list(map_problems(self.sharding)):
            return len(self.sharding.devices)
        if self.engine.searches_capacity and self.capacity.find == "processes":
            return self.capacity.at_most
        replicas = parallel.context_parallel_size * parallel.data_parallel_size
        return parallel.tensor_parallel_size * parallel.pipeline_parallel_size * replicas

    @property
    def num_micro_batches(self) -> int:
        """Micro batches per iteration and data parallel rank (gradient accumulation steps)."""
        return self.train.global_batch_size // (self.train.micro_batch_size * self.parallel.data_parallel_size)

    @property
    def gpus_per_node(self) -> int:
        """GPUs on each node; derived from the layout if the configuration leaves it empty."""
        return self.cluster.gpus_per_node or self.world_size // self.cluster.nodes

    @property
    def num_hosts(self) -> int:
        """Ends of the links of section network: nodes if there are several, else ranks."""
        return self.cluster.nodes if self.cluster.nodes > 1 else self.world_size

    @property
    def ranks_per_host(self) -> int:
        """Ranks behind each end of a link."""
        return max(1, self.world_size // self.num_hosts)
