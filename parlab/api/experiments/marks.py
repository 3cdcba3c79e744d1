"""Tags, stars and notes of runs; comments on experiments and findings."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.db import transaction
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem
from parlab.api.serializers import Errors
from parlab.lab.models import Comment, Experiment, Finding, Run
from parlab.lab.models.mark import COMMENT_LENGTH, NOTE_LENGTH, TAG_LENGTH
from parlab.lab.selectors.lists import RunMarks, run_marks
from parlab.lab.services.marks import (
    comment_add,
    comment_edit,
    run_note_save,
    runs_star,
    runs_tag,
    runs_unstar,
    runs_untag,
)

from .numbers import find_run


class MarksRequest(drf.Serializer[Any]):
    """What to change; omitted fields stay as they are."""

    tags = drf.ListField(
        child=drf.CharField(max_length=TAG_LENGTH), required=False, help_text="All tags that the run shall have."
    )
    starred = drf.BooleanField(required=False, help_text="Whether the user of the token stars the run.")
    note = drf.CharField(
        required=False, allow_blank=True, max_length=NOTE_LENGTH, help_text="Markdown; empty: no note."
    )


class MarksItem(drf.Serializer[Any]):
    """What people added to a run."""

    tags = drf.ListField(child=drf.CharField())
    starred_by = drf.ListField(child=drf.CharField(), help_text="Users who starred the run.")
    note = drf.CharField(help_text="Markdown.")


class CommentRequest(drf.Serializer[Any]):
    text = drf.CharField(max_length=COMMENT_LENGTH, help_text="Markdown.")
    finding = drf.IntegerField(required=False, allow_null=True, help_text="ID of a finding of the experiment.")


class CommentItem(drf.ModelSerializer[Comment]):
    """A comment with its author."""

    author = drf.CharField(source="author.username")
    url = drf.SerializerMethodField(help_text="Address of the comment.")

    class Meta:
        model = Comment
        fields = ["id", "author", "text", "finding", "about", "created_at", "edited_at", "url"]

    @extend_schema_field(drf.CharField())
    def get_url(self, comment: Comment) -> str:
        return comment.get_absolute_url()


class Marks(APIView):
    """Tags, stars and note of a run."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="marks_read", responses={200: MarksItem})
    def get(self, _request: Request, slug: str, number: int) -> Response:
        return Response(_marks(find_run(slug, number)))

    @extend_schema(operation_id="marks_change", request=MarksRequest, responses={200: MarksItem, 400: Errors})
    def patch(self, request: Request, slug: str, number: int) -> Response:
        asked = MarksRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        run, user = find_run(slug, number), cast(User, request.user)
        options = asked.validated_data
        needed = {"tags": "lab.add_tagofrun", "starred": "lab.add_star", "note": "lab.change_runnote"}
        for field in options:
            if not user.has_perm(needed[field]):
                raise PermissionDenied(f"Your account has no permission for this ({needed[field]}).")
        try:
            with transaction.atomic():
                _change(run, user, options)
        except ValueError as error:
            message, _, remedy = str(error).partition("; ")
            raise Problem(message, field="tags", value=options.get("tags"), remedy=remedy) from error
        return Response(_marks(run))


def _change(run: Run, user: User, options: dict[str, Any]) -> None:
    if "tags" in options:
        present = run_marks([run.pk]).get(run.pk, RunMarks()).tags
        for name in set(present) - {name.strip().lower() for name in options["tags"]}:
            runs_untag(runs=[run], name=name)
        for name in options["tags"]:
            runs_tag(runs=[run], name=name)
    if "starred" in options:
        change = runs_star if options["starred"] else runs_unstar
        change(runs=[run], user=user)
    if "note" in options:
        run_note_save(run=run, text=options["note"], user=user)


def _marks(run: Run) -> dict[str, Any]:
    marks = run_marks([run.pk]).get(run.pk, RunMarks())
    return {"tags": list(marks.tags), "starred_by": list(marks.stars), "note": marks.note}


class Comments(APIView):
    """Comments on an experiment and its findings, oldest first."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="comments_list", responses={200: CommentItem(many=True)})
    def get(self, _request: Request, slug: str) -> Response:
        experiment = get_object_or_404(Experiment, slug=slug)
        comments = Comment.objects.select_related("author", "experiment").filter(experiment=experiment)
        return Response(CommentItem(comments, many=True).data)

    @extend_schema(operation_id="comments_add", request=CommentRequest, responses={201: CommentItem, 400: Errors})
    def post(self, request: Request, slug: str) -> Response:
        experiment = get_object_or_404(Experiment, slug=slug)
        if not request.user.has_perm("lab.add_comment"):
            raise PermissionDenied("Your account has no permission for this (lab.add_comment).")
        asked = CommentRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        pk = asked.validated_data.get("finding")
        finding = get_object_or_404(Finding, pk=pk, experiment=experiment) if pk is not None else None
        text, user = asked.validated_data["text"], cast(User, request.user)
        comment = comment_add(experiment=experiment, text=text, user=user, finding=finding)
        return Response(CommentItem(comment).data, status=status.HTTP_201_CREATED)


class OneComment(APIView):
    """Change or delete a comment: its author."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="comments_change", request=CommentRequest, responses={200: CommentItem, 400: Errors})
    def patch(self, request: Request, slug: str, pk: int) -> Response:
        comment = _comment(slug, pk)
        if not comment.may_change(request.user):
            raise PermissionDenied("Only its author can change a comment.")
        asked = CommentRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        return Response(CommentItem(comment_edit(comment=comment, text=asked.validated_data["text"])).data)

    @extend_schema(operation_id="comments_delete", responses={204: None})
    def delete(self, request: Request, slug: str, pk: int) -> Response:
        comment = _comment(slug, pk)
        if not comment.may_delete(request.user):
            raise PermissionDenied("Only its author can delete a comment.")
        comment.delete()
        return Response(status=status.HTTP_204_NO_CONTENT)


def _comment(slug: str, pk: int) -> Comment:
    return get_object_or_404(Comment.objects.select_related("author", "experiment"), pk=pk, experiment__slug=slug)
