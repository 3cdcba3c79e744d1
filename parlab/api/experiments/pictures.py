"""Pictures of an experiment: panels that a worker draws, and uploaded figures."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, permissions, status
from rest_framework import serializers as drf
from rest_framework.exceptions import PermissionDenied
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.api.team.versions import DrawingItem
from parlab.ingest.files.received import display_name
from parlab.lab.models import Experiment, Snapshot
from parlab.lab.services.pictures import file_store, picture_add, picture_delete, pictures_request
from parlab.publishing.downloads import picture_response
from parlab.publishing.images import cleaned
from parlab.publishing.tasks import send
from parlab.whole_numbers import whole_number

from .experiments import Pages
from .numbers import find_run


class PictureItem(drf.Serializer[Any]):
    """A picture of an experiment."""

    id = drf.IntegerField(source="pk")
    run = drf.IntegerField(source="run.number", allow_null=True, default=None)
    caption = drf.SerializerMethodField()
    width = drf.SerializerMethodField(help_text="Pixels.")
    height = drf.SerializerMethodField()
    created_at = drf.DateTimeField()

    def get_caption(self, picture: Snapshot) -> str:
        return picture.caption

    def get_width(self, picture: Snapshot) -> int | None:
        width: int | None = picture.content.get("width")
        return width

    def get_height(self, picture: Snapshot) -> int | None:
        height: int | None = picture.content.get("height")
        return height


class PictureRequest(drf.Serializer[Any]):
    """A picture to add; its metadata is removed."""

    file = drf.FileField(help_text="PNG, JPEG, GIF or WebP.")
    caption = drf.CharField(required=False, allow_blank=True, default="", max_length=300)
    run = drf.IntegerField(required=False, allow_null=True, help_text="Number of a run.")


class Pictures(generics.ListAPIView[Snapshot]):
    """The pictures of an experiment; POST adds one."""

    permission_classes = [permissions.IsAuthenticated]
    parser_classes = [MultiPartParser]
    serializer_class = PictureItem
    pagination_class = Pages
    queryset = Snapshot.objects.none()

    def get_queryset(self) -> QuerySet[Snapshot]:
        experiment = get_object_or_404(Experiment, slug=self.kwargs["slug"])
        pictures = experiment.snapshots.filter(kind=Snapshot.Kind.IMAGE).select_related("run").order_by("pk")
        number = self.request.GET.get("run", "")
        if not number:
            return pictures
        run = whole_number(number, 9)
        if run is None:
            raise Problem(f"run {number[:40]!r} is not a number", field="run", value=number, remedy="use 1, 2, ...")
        return pictures.filter(run__number=run)

    @extend_schema(operation_id="pictures_list", parameters=[OpenApiParameter("run", int, description="Only of it.")])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(operation_id="pictures_add", request=PictureRequest, responses={201: PictureItem, 400: Errors})
    def post(self, request: Request, slug: str) -> Response:
        user = user_with("lab.add_snapshot", request)
        experiment = get_object_or_404(Experiment, slug=slug)
        asked = PictureRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        number = options.get("run")
        run = None if number is None else experiment.runs.filter(number=number).first()
        if number is not None and run is None:
            remedy = f"use a number of /api/experiments/{slug}/runs/"
            raise Problem(f"{slug} has no run {number}", field="run", value=number, remedy=remedy)
        file = options["file"]
        name = display_name(file.name or "picture")
        with refused("file", name):
            clean = cleaned(file, name=name, size=file.size, limit=settings.PICTURE_LIMIT_MIB * 2**20)
        stored = file_store(data=clean.data, media_type=clean.media_type, width=clean.width, height=clean.height)
        picture = picture_add(
            experiment=experiment,
            run=run,
            file=stored,
            caption=options["caption"] or name,
            facts={"origin": "uploaded", "name": name},
            user=user,
        )
        return Response(PictureItem(picture).data, status=status.HTTP_201_CREATED)


class OnePicture(APIView):
    """The bytes of a picture; DELETE removes it, published reports keep their copy."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="pictures_read", responses={(200, "image/*"): OpenApiTypes.BINARY, 404: Errors})
    def get(self, _request: Request, slug: str, pk: int) -> HttpResponse:
        return picture_response(_picture(slug, pk))

    @extend_schema(operation_id="pictures_delete", responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        picture = _picture(slug, pk)
        if not picture.is_deletable_by(cast(User, request.user)):
            raise PermissionDenied("This picture belongs to another user, or to an imported page.")
        picture_delete(snapshot=picture)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _picture(slug: str, pk: int) -> Snapshot:
    return get_object_or_404(Snapshot, pk=pk, experiment__slug=slug, kind=Snapshot.Kind.IMAGE)


class RunPictures(APIView):
    """The drawing of the panels of a run by a worker; POST requests it, the pictures appear in the list."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="runs_drawings", responses={200: DrawingItem(many=True)})
    def get(self, _request: Request, slug: str, number: int) -> Response:
        return Response(DrawingItem(find_run(slug, number).picture_jobs.order_by("-pk")[:100], many=True).data)

    @extend_schema(operation_id="runs_draw", request=None, responses={202: DrawingItem})
    def post(self, request: Request, slug: str, number: int) -> Response:
        user = user_with("lab.add_snapshot", request)
        drawing = pictures_request(user=user, run=find_run(slug, number))
        send(drawing.pk)
        return Response(DrawingItem(drawing).data, status=status.HTTP_202_ACCEPTED)
