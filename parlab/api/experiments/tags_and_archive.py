"""Tags, archive, clones and deletion of experiments and runs."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.lab.models import Experiment, Run
from parlab.lab.services.access.rights import require_change
from parlab.lab.services.archive import (
    experiments_archive,
    experiments_restore,
    runs_archive,
    runs_delete,
    runs_restore,
)
from parlab.lab.services.experiments import experiment_clone
from parlab.lab.services.tagging import experiments_tag, experiments_untag


class ShelfRequest(drf.Serializer[Any]):
    """What to change; omitted fields stay as they are."""

    tags = drf.ListField(
        child=drf.CharField(max_length=80), required=False, help_text="All tags that the experiment shall have."
    )
    archived = drf.BooleanField(required=False, help_text="Archived experiments are in no list.")


class ShelfItem(drf.Serializer[Any]):
    """Tags and archive of an experiment."""

    slug = drf.SlugField()
    tags = drf.ListField(child=drf.CharField())
    archived = drf.BooleanField()


class CloneAnswer(drf.Serializer[Any]):
    """The new experiment."""

    slug = drf.SlugField()
    name = drf.CharField()


class RunShelfRequest(drf.Serializer[Any]):
    archived = drf.BooleanField(help_text="Tables, figures and findings leave archived runs out.")


class RunShelfItem(drf.Serializer[Any]):
    number = drf.IntegerField()
    archived = drf.BooleanField()


class Shelf(APIView):
    """Tags and archive of an experiment."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="shelf_read", responses={200: ShelfItem})
    def get(self, _request: Request, slug: str) -> Response:
        return Response(_item(get_object_or_404(Experiment, slug=slug)))

    @extend_schema(operation_id="shelf_change", request=ShelfRequest, responses={200: ShelfItem, 400: Errors})
    def patch(self, request: Request, slug: str) -> Response:
        user_with("lab.change_experiment", request)
        experiment = get_object_or_404(Experiment, slug=slug)
        asked = ShelfRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        with transaction.atomic():
            if "tags" in options:
                with refused("tags", options["tags"]):
                    _tags_set(experiment, options["tags"])
            if "archived" in options:
                require_change(request.user, experiment)
                _archive(experiment, is_archived=options["archived"])
        experiment.refresh_from_db()
        return Response(_item(experiment))


def _tags_set(experiment: Experiment, names: list[str]) -> None:
    present = set(experiment.tags.values_list("name", flat=True))
    for name in present - {name.strip().lower() for name in names}:
        experiments_untag(experiments=[experiment], name=name)
    for name in names:
        experiments_tag(experiments=[experiment], name=name)


def _archive(experiment: Experiment, *, is_archived: bool) -> None:
    if not is_archived:
        experiments_restore(experiments=[experiment])
        return
    _, busy = experiments_archive(experiments=[experiment])
    if busy:
        remedy = "cancel the runs or wait for them"
        raise Problem(f"{experiment.name} has active runs", field="archived", value=True, remedy=remedy)


def _item(experiment: Experiment) -> dict[str, Any]:
    tags = sorted(experiment.tags.values_list("name", flat=True))
    return {"slug": experiment.slug, "tags": tags, "archived": experiment.archived_at is not None}


class Clone(APIView):
    """Copy the newest configuration of an experiment into a new one, without runs."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="experiments_clone", request=None, responses={201: CloneAnswer})
    def post(self, request: Request, slug: str) -> Response:
        user = user_with("lab.add_experiment", request)
        copy = experiment_clone(experiment=get_object_or_404(Experiment, slug=slug), user=user)
        return Response({"slug": copy.slug, "name": copy.name}, status=status.HTTP_201_CREATED)


class RunShelf(APIView):
    """Archive, restore or delete a run that has ended."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="runs_archive", request=RunShelfRequest, responses={200: RunShelfItem, 400: Errors})
    def patch(self, request: Request, slug: str, number: int) -> Response:
        user = user_with("lab.change_run", request)
        asked = RunShelfRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        run = _run(slug, number)
        require_change(user, run)
        if asked.validated_data["archived"]:
            _, active = runs_archive(runs=[run])
            if active:
                remedy = "cancel it or wait for its end"
                raise Problem(f"run {number} is {run.state}", field="archived", value=True, remedy=remedy)
        else:
            runs_restore(run_ids=[run.pk])
        return Response({"number": number, "archived": _run(slug, number).hidden_at is not None})

    @extend_schema(operation_id="runs_delete", responses={204: None, 400: Errors})
    def delete(self, request: Request, slug: str, number: int) -> Response:
        user_with("lab.delete_run", request)
        with refused("number", number):
            runs_delete(runs=[_run(slug, number)])
        return Response(status=status.HTTP_204_NO_CONTENT)


def _run(slug: str, number: int) -> Run:
    """Return a run, archived or not."""
    return get_object_or_404(Run.everything.select_related("experiment"), experiment__slug=slug, number=number)
