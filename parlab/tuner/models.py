from django.conf import settings
from django.db import models
from django.urls import reverse

from parlab.lab.models import Config, Run
from parlab.lab.models.access.viewer import VisibleManager, VisibleQuerySet


class StudyQuerySet(VisibleQuerySet["Study"]):
    def running(self) -> "StudyQuerySet":
        return self.filter(state=Study.State.RUNNING)


StudyManager = VisibleManager.from_queryset(StudyQuerySet)


class Study(models.Model):
    """A search for the best point of a configuration's sweep that launches few of its runs.

    Launches and their results are rows of Trial and Run; an interrupted study continues from them.
    """

    PROJECT = "config__experiment__project"

    class Strategy(models.TextChoices):
        PLANNED = "planned", "Planned"
        DEEPSPEED = "deepspeed", "DeepSpeed's order"
        RANDOM = "random", "Random"
        EXHAUSTIVE = "exhaustive", "Exhaustive"
        AUTOTUNER = "autotuner", "DeepSpeed's own autotuner"

    class Objective(models.TextChoices):
        THROUGHPUT = "throughput", "Throughput (samples/s)"
        LATENCY = "latency", "Latency (s per iteration)"
        COST = "cost", "Cost (device seconds per sample)"

    class State(models.TextChoices):
        RUNNING = "running", "running"
        PAUSED = "paused", "paused"
        FINISHED = "finished", "finished"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    config = models.ForeignKey(Config, models.RESTRICT, related_name="studies", help_text="Its sweep is the space.")
    baseline = models.ForeignKey(
        Config,
        models.RESTRICT,
        null=True,
        blank=True,
        related_name="studies_as_baseline",
        help_text="Configuration to compare the result with, like the Hugging Face Trainer without DeepSpeed.",
    )
    hand_tuned = models.BooleanField(
        default=True,
        help_text="Also increase the micro batch by itself, with all other axes at their first value, for comparison.",
    )
    strategy = models.CharField(max_length=12, choices=Strategy, default=Strategy.PLANNED)
    objective = models.CharField(max_length=12, choices=Objective, default=Objective.THROUGHPUT)
    max_launches = models.PositiveIntegerField(default=20, help_text="Launches of the search, at most.")
    driver = models.ForeignKey(
        Run,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="studies_as_driver",
        help_text="Run of engine autotuning, where DeepSpeed's own autotuner searches.",
    )
    past_runs = models.PositiveIntegerField(
        default=0, help_text="Earlier runs on such nodes that corrected the first predictions."
    )
    state = models.CharField(max_length=12, choices=State, default=State.RUNNING)
    reason = models.TextField(blank=True, help_text="Why it stopped, or what it waits for.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = StudyManager()

    class Meta:
        ordering = ["-created_at", "-pk"]
        verbose_name_plural = "studies"
        indexes = [models.Index(fields=["state"], name="study_state")]

    def __str__(self) -> str:
        return f"Study {self.pk} of {self.config}"

    def get_absolute_url(self) -> str:
        return reverse("study", args=[self.pk])

    @property
    def has_ended(self) -> bool:
        return self.state in (self.State.FINISHED, self.State.FAILED, self.State.CANCELLED)


class Trial(models.Model):
    """A run that a study launched or reused, and the reason."""

    class Role(models.TextChoices):
        SEARCH = "search", "search"
        HAND_TUNED = "hand-tuned", "hand-tuned"
        BASELINE = "baseline", "baseline"

    study = models.ForeignKey(Study, models.CASCADE, related_name="trials")
    run = models.ForeignKey(Run, models.CASCADE, related_name="trials")
    role = models.CharField(max_length=12, choices=Role)
    number = models.PositiveIntegerField(help_text="Number within the study, in the order of the launches.")
    key = models.CharField(max_length=300, help_text="Name of the setting, like z1_gas2_tmbspg8.")
    tuning_space = models.CharField(max_length=80)
    why = models.CharField(max_length=300, blank=True)
    expected = models.FloatField(
        null=True, blank=True, help_text="Value of the objective that was predicted before the launch."
    )
    reused = models.BooleanField(default=False, help_text="The run existed before the study needed it.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["study", "number"]
        constraints = [
            models.UniqueConstraint(fields=["study", "role", "run"], name="trial_run_once"),
            models.UniqueConstraint(fields=["study", "number"], name="trial_number_once"),
        ]

    def __str__(self) -> str:
        return f"{self.study} trial {self.number}"
