"""Projects, their members, and moving experiments between them."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.lab.models import Experiment, Membership, Project, Role
from parlab.lab.selectors.projects import seen_project, seen_projects
from parlab.lab.services.access import projects as services
from parlab.lab.services.access.budgets import budget_set
from parlab.lab.services.access.rights import may_manage, viewer_for


class ProjectItem(drf.Serializer[Any]):
    """A project that the user sees."""

    approval_gpu_hours = drf.FloatField(
        allow_null=True,
        help_text="GPU hours that a person may have queued and running without an approval; null: those of the shared"
        " project, in that one any.",
    )

    slug = drf.SlugField()
    name = drf.CharField()
    visibility = drf.ChoiceField(Project.Visibility.choices)
    is_shared = drf.BooleanField(help_text="Whether it is the project of everything that names none.")
    role = drf.ChoiceField(Role.choices, help_text="What the user may do in it.")


class ProjectRequest(drf.Serializer[Any]):
    """A project to create; its creator becomes its maintainer."""

    name = drf.CharField(max_length=80)
    visibility = drf.ChoiceField(Project.Visibility.choices, default=Project.Visibility.PRIVATE)


class ProjectChange(drf.Serializer[Any]):
    """What to change; omitted fields stay as they are."""

    approval_gpu_hours = drf.FloatField(
        required=False, allow_null=True, min_value=0, help_text="Administrators; null: as in the shared project."
    )

    name = drf.CharField(max_length=80, required=False)
    visibility = drf.ChoiceField(Project.Visibility.choices, required=False)
    pools = drf.ListField(
        child=drf.CharField(max_length=63),
        required=False,
        help_text="Pools of nodes that only it uses.",
    )


class MemberItem(drf.ModelSerializer[Membership]):
    """A person and their role."""

    username = drf.CharField(source="user.username")

    class Meta:
        model = Membership
        fields = ["username", "role", "created_at"]


class RoleRequest(drf.Serializer[Any]):
    role = drf.ChoiceField(Role.choices)


class MoveRequest(drf.Serializer[Any]):
    project = drf.SlugField(help_text="Slug of the project to move it to.")


def _find(request: Request, slug: str) -> Project:
    return seen_project(viewer_for(request.user), slug)


def managed_project(request: Request, slug: str) -> Project:
    """Return a project that the user maintains; raises Http404, PermissionDenied."""
    project = _find(request, slug)
    if not may_manage(request.user, project):
        raise PermissionDenied(f"You are not a maintainer of project {project}.")
    return project


def _item(request: Request, project: Project) -> Any:
    return ProjectItem({**vars(project), "role": viewer_for(request.user).roles[project.pk]}).data


class Projects(APIView):
    """The projects that the user sees; POST creates one."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="projects_list", responses={200: ProjectItem(many=True)})
    def get(self, request: Request) -> Response:
        return Response([_item(request, project) for project in seen_projects(viewer_for(request.user))])

    @extend_schema(operation_id="projects_create", request=ProjectRequest, responses={201: ProjectItem, 400: Errors})
    def post(self, request: Request) -> Response:
        user = user_with("lab.add_experiment", request)
        asked = ProjectRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        with refused("name", asked.validated_data["name"]):
            project = services.project_create(**asked.validated_data, user=user)
        answer = ProjectItem({**vars(project), "role": Role.MAINTAINER}).data
        return Response(answer, status=status.HTTP_201_CREATED)


class OneProject(APIView):
    """One project; PATCH renames it, changes who sees it, or reserves pools of nodes for it."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="projects_read", responses={200: ProjectItem})
    def get(self, request: Request, slug: str) -> Response:
        return Response(_item(request, _find(request, slug)))

    @extend_schema(operation_id="projects_change", request=ProjectChange, responses={200: ProjectItem, 400: Errors})
    def patch(self, request: Request, slug: str) -> Response:
        project = managed_project(request, slug)
        asked = ProjectChange(data=request.data)
        asked.is_valid(raise_exception=True)
        options = dict(asked.validated_data)
        pools = options.pop("pools", None)
        if pools is not None:
            user_with("lab.change_node", request)
            with refused("pools", pools):
                services.pools_set(project=project, pools=pools)
        if "approval_gpu_hours" in options:
            hours = options.pop("approval_gpu_hours")
            with refused("approval_gpu_hours", hours):
                budget_set(project=project, hours=hours, user=request.user)
        with refused("name", options.get("name")):
            services.project_change(project=project, **options)
        return Response(_item(request, project))


class Members(APIView):
    """The members of a project."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="members_list", responses={200: MemberItem(many=True)})
    def get(self, request: Request, slug: str) -> Response:
        rows = _find(request, slug).memberships.select_related("user")
        return Response(MemberItem(rows, many=True).data)


class OneMember(APIView):
    """PUT gives a person a role in a project, DELETE takes it: maintainers."""

    token_scope = "admin"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="members_set", request=RoleRequest, responses={200: MemberItem, 400: Errors})
    def put(self, request: Request, slug: str, name: str) -> Response:
        project = managed_project(request, slug)
        asked = RoleRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        person = User.objects.filter(username=name, is_active=True).first()
        if person is None:
            raise Problem(f"unknown user {name!r}", field="name", value=name, remedy="use the name of an account")
        with refused("role", asked.validated_data["role"]):
            member = services.member_set(project=project, user=person, role=asked.validated_data["role"])
        return Response(MemberItem(member).data)

    @extend_schema(operation_id="members_remove", responses={204: None, 400: Errors})
    def delete(self, request: Request, slug: str, name: str) -> Response:
        project = managed_project(request, slug)
        member = get_object_or_404(project.memberships.select_related("user"), user__username=name)
        with refused("name", name):
            services.member_remove(project=project, user=member.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Move(APIView):
    """Move an experiment with its reports, dashboards and watches to another project; its address stays."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="experiments_move", request=MoveRequest, responses={200: ProjectItem, 400: Errors})
    def post(self, request: Request, slug: str) -> Response:
        experiment = get_object_or_404(Experiment, slug=slug)
        asked = MoveRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        project = Project.objects.filter(
            pk__in=viewer_for(request.user).roles, slug=asked.validated_data["project"]
        ).first()
        if project is None:
            value = asked.validated_data["project"]
            raise Problem(
                f"unknown project {value!r}", field="project", value=value, remedy="use one of /api/projects/"
            )
        with refused("project", project.slug):
            services.experiment_move(experiment=experiment, project=project, user=cast(User, request.user))
        return Response(_item(request, project))
