"""Connect a script: what to write for each tool, a token for it, and the run that reports first."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from parlab.charts.svg import FIRST, Canvas, Margins
from parlab.lab.models import ApiToken, Run
from parlab.lab.services.access.tokens import token_create
from parlab.pages.reads.runs.losses import loss_curve
from parlab.pages.views.partial import UNCHANGED
from parlab.whole_numbers import whole_number
from runners.config import digest

TOKEN_DAYS = 365
PLACEHOLDER = "parlab_..."
_PARLAB = "export PARLAB_URL={url}\nexport PARLAB_TOKEN={token}"
_MLFLOW = "export MLFLOW_TRACKING_URI={url}\nexport MLFLOW_TRACKING_TOKEN={token}"
_WANDB = "export WANDB_BASE_URL={url}\nexport WANDB_API_KEY={token}"


class Tool(NamedTuple):
    """A way to report: what is set in the shell, and what is written in the script or run."""

    name: str
    title: str
    note: str
    icon: str
    shell: str
    where: str
    """Heading of the second part."""
    script: str
    """As in docs/use/logging.md, whose snippets are tested."""


TOOLS = (
    Tool("parlab", "parlab", "client, any script", "link", _PARLAB, "In the script", """\
import parlab

config = {"per_device_train_batch_size": 4, "world_size": 8}
with parlab.init("Warm-up length", config=config) as run:
    for step in range(100):
        with run.phase("forward"):
            loss = forward()
        run.log({"train/loss": loss, "tokens_per_s": rate}, step=step)"""),
    Tool("mlflow", "MLflow", "two variables", "link", _MLFLOW, "The script stays as it is", """\
import mlflow

mlflow.set_experiment("Warm-up length")
with mlflow.start_run(run_name="warm-up 100"):
    mlflow.log_params({"per_device_train_batch_size": 4, "world_size": 8})
    for step in range(100):
        mlflow.log_metrics({"train/loss": loss, "tokens_per_sec": rate}, step=step)"""),
    Tool("wandb", "W&B", "two variables", "link", _WANDB, "The script stays as it is", """\
import wandb

config = {"batch_size": 4}
with wandb.init(project="Warm-up length", config=config) as run:
    for step in range(100):
        run.log({"train/loss": loss, "tokens_per_sec": rate}, step=step)"""),
    Tool("huggingface", "Hugging Face", "one callback", "link", _PARLAB, "In the script", """\
import parlab

callback = parlab.HuggingFaceCallback(experiment="Warm-up length", name="hugging face")
transformers.Trainer(model, arguments, train_dataset=dataset, callbacks=[callback]).train()"""),
    Tool("lightning", "Lightning", "one callback", "link", _PARLAB, "In the script", """\
import parlab

callback = parlab.LightningCallback(experiment="Warm-up length", name="lightning")
trainer = lightning.pytorch.Trainer(max_steps=6, log_every_n_steps=2, callbacks=[callback])
trainer.fit(model, batches)"""),
    Tool("deepspeed", "DeepSpeed", "one monitor", "link", _PARLAB, "In the script", """\
import parlab

engine, *_ = deepspeed.initialize(model=model, config=config)
with parlab.init("Warm-up length", config, name="deepspeed") as run:
    engine.monitor = parlab.DeepSpeedMonitor(run, engine.monitor, batch_size=engine.train_batch_size())
    for inputs, targets in batches:
        loss = torch.nn.functional.mse_loss(engine(inputs), targets)
        engine.backward(loss)
        engine.step()
        run.log({"train/loss": loss}, step=engine.global_steps)"""),
    Tool("run", "parlab run", "no change of code", "terminal", _PARLAB, "Before the command",
         'parlab run --experiment "Warm-up length" -- torchrun --nproc-per-node 8 train.py'),
    Tool("follow", "Follow a log", "a file that grows", "clipboard", _PARLAB, "Beside the training",
         'parlab follow --experiment "Warm-up length" slurm-123.out'),
    Tool("tensorboard", "TensorBoard", "its event files", "chart-line", _PARLAB, "Beside the training",
         'parlab follow --experiment "Warm-up length" outputs/tb'),
)  # fmt: skip
"""One row for each way to report; the first is shown first."""


@require_GET
@never_cache
@permission_required("lab.add_run", raise_exception=True)
def connect(request: HttpRequest) -> HttpResponse:
    """Show what to write for `?with=` a tool."""
    return _page(request, request.GET.get("with", ""))


@require_POST
@never_cache
@permission_required("lab.add_run", raise_exception=True)
def connect_token(request: HttpRequest) -> HttpResponse:
    """Make a token that may read and report, and show it in the snippets. Only this answer has its secret."""
    user, name = cast(User, request.user), request.POST.get("with", "")
    title = f"connect {timezone.now():%Y-%m-%d %H:%M:%S}"
    try:
        made, secret = token_create(user=user, name=title, by=user, scopes=("read", "report"), days=TOKEN_DAYS)
    except ValueError as problem:
        return _page(request, name, status=400, problem=f"No token was made: {problem}.")
    return _page(request, name, secret=secret, made=made)


def _page(request: HttpRequest, name: str, *, status: int = 200, secret: str = "", **more: Any) -> HttpResponse:
    tool = next((tool for tool in TOOLS if tool.name == name), TOOLS[0])
    url = request.build_absolute_uri("/").rstrip("/")
    context: dict[str, Any] = {
        "section": "connect",
        "tools": TOOLS,
        "tool": tool,
        "shell": tool.shell.format(url=url, token=secret or PLACEHOLDER),
        "secret": secret,
        "after": _newest(cast(User, request.user)),
        **more,
    }
    made: ApiToken | None = more.get("made")
    context["token"] = made.pk if made else ""
    return render(request, "pages/files/connect.html", context, status=status)


def _newest(user: User) -> int:
    runs = Run.objects.filter(origin=Run.Origin.REPORTED, created_by=user).order_by("-pk")
    return runs.values_list("pk", flat=True).first() or 0


@require_GET
@permission_required("lab.add_run", raise_exception=True)
def connect_live(request: HttpRequest) -> HttpResponse:
    """Answer a poll with the newest run that the person reports since the page was opened."""
    user = cast(User, request.user)
    after, token = _whole_or_zero(request.GET.get("after", "")), _whole_or_zero(request.GET.get("token", ""))
    runs = Run.objects.filter(origin=Run.Origin.REPORTED, created_by=user, pk__gt=after).select_related("experiment")
    run = runs.order_by("-pk").first()
    curve = loss_curve(run) if run else None
    is_used = ApiToken.objects.filter(pk=token, user=user).exclude(last_used_at=None).exists()
    seen = digest([run.pk if run else 0, run.state if run else "", len(curve.steps) if curve else 0, is_used])[:16]
    if request.GET.get("seen") == seen:
        return HttpResponse(status=UNCHANGED)
    context: dict[str, Any] = {"run": run, "after": after, "token": token or "", "is_used": is_used, "seen": seen}
    if run and curve and len(curve.steps) > 1:
        context |= {"steps": len(curve.steps), "last": curve.steps[-1], "figure": _figure(curve.steps, curve.values)}
    return render(request, "pages/files/connect_live.html", context)


def _whole_or_zero(text: str) -> int:
    return whole_number(text) or 0


def _figure(steps: list[float], values: list[float]) -> str:
    canvas = Canvas(426, 188, (steps[0], steps[-1]), (min(values), max(values)), Margins(38, 14, 10, 24))
    canvas.y_axis().x_axis(title="step").line(steps, values, look=FIRST)
    return canvas.mark(canvas.x(steps[-1]), canvas.y(values[-1]), FIRST, 4).svg(f"Loss, now {values[-1]:.4g}")
