"""`manage.py tune`: start a study of a configuration's sweep, follow it, and print its result."""

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from parlab.lab.command_line import user_named
from parlab.lab.models import Config, Experiment
from parlab.tuner import services
from parlab.tuner.models import Study
from parlab.tuner.results import result_of
from parlab.tuner.text import result_markdown, trial_line
from runners.config import ConfigError

_LOOK_EVERY_S = 1.0


class Command(BaseCommand):
    help = (
        "Search the sweep of an experiment's configuration for its best setting by launching few of its runs, and print"
        " the result. Ctrl-C stops following; the study continues. The exit code is 1 if no trial finished."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("experiment", metavar="SLUG", nargs="?", help="experiment whose newest sweep is searched")
        parser.add_argument("--config", type=int, metavar="VERSION", help="another version of its configuration")
        parser.add_argument("--baseline", type=int, metavar="VERSION", help="version to compare the result with")
        parser.add_argument("--strategy", default="planned", choices=Study.Strategy.values)
        parser.add_argument("--objective", default="throughput", choices=Study.Objective.values)
        parser.add_argument("--max-launches", type=int, default=20, metavar="N")
        parser.add_argument(
            "--no-hand-tuned", action="store_true", help="do not compare with manual tuning of the micro batch"
        )
        parser.add_argument("--user", metavar="NAME", help="owner of the study; default: the first superuser")
        parser.add_argument("--study", type=int, metavar="ID", help="follow or resume an existing study")
        parser.add_argument("--no-wait", action="store_true", help="start it and return")

    def handle(self, *args: Any, **options: Any) -> None:
        study = _existing_study(options["study"]) if options["study"] else self._start(options)
        if options["no_wait"]:
            self.stdout.write(f"study {study.pk} of {study.config}: {study.state}")
            return
        try:
            study = self._follow(study)
        except KeyboardInterrupt:
            self.stderr.write(f"study {study.pk} continues; follow it with: manage.py tune --study {study.pk}")
            return
        self.stdout.write(result_markdown(result_of(study)))
        if study.state != Study.State.FINISHED:
            raise CommandError(f"study {study.pk} {study.state}: {study.reason}", returncode=1)

    def _start(self, options: dict[str, Any]) -> Study:
        experiment = Experiment.objects.filter(slug=options["experiment"] or "").first()
        if experiment is None:
            slugs = ", ".join(Experiment.objects.values_list("slug", flat=True)[:10]) or "none yet"
            raise CommandError(f"unknown experiment {options['experiment']!r}; use one of: {slugs}")
        try:
            return services.study_create(
                config=_config(experiment, options["config"]),
                baseline=_config(experiment, options["baseline"]) if options["baseline"] else None,
                user=user_named(options["user"]),
                strategy=options["strategy"],
                objective=options["objective"],
                max_launches=options["max_launches"],
                hand_tuned=not options["no_hand_tuned"],
            )
        except (ValueError, ConfigError) as problem:
            raise CommandError(str(problem)) from problem

    def _follow(self, study: Study) -> Study:
        """Print each trial once it has ended, until the study has ended."""
        printed: set[int] = set()
        while True:
            study = services.study_advance(study=study)
            result = result_of(study)
            for tried in result.tried:
                if tried.run.is_final and tried.trial.pk not in printed:
                    printed.add(tried.trial.pk)
                    self.stdout.write(trial_line(tried, result.unit))
            if study.state != Study.State.RUNNING:
                return study
            time.sleep(_LOOK_EVERY_S)


def _existing_study(pk: int) -> Study:
    study = Study.objects.filter(pk=pk).first()
    if study is None:
        raise CommandError(f"unknown study {pk}; see the page Tune")
    services.study_resume(study=study)
    study.refresh_from_db()
    return study


def _config(experiment: Experiment, version: int | None) -> Config:
    configs = experiment.configs.order_by("-version")
    newest = configs.exclude(sweep={}).first() or configs.first()
    config = newest if version is None else configs.filter(version=version).first()
    if config is None:
        raise CommandError(f"{experiment.slug} has no configuration{'' if version is None else f' version {version}'}")
    return config
