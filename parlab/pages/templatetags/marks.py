"""Comments and notes of runs in templates."""

from typing import Any

from django import template
from django.db.models import Model
from django.utils.safestring import SafeString

from parlab.lab.models import Comment
from parlab.lab.services.access import rights
from parlab.pages.reads.notes import notes_html

register = template.Library()


@register.filter
def marked(text: str) -> SafeString:
    """Render Markdown that a person wrote as safe HTML."""
    return notes_html(text)


@register.filter
def changeable_by(thing: Model, user: Any) -> bool:
    """Whether a person may change a row of a project."""
    return rights.may_change(user, thing)


@register.simple_tag(takes_context=True)
def may_change(context: template.Context, comment: Comment) -> bool:
    """Whether the user may edit a comment."""
    user: Any = context["user"]
    return comment.may_change(user)


@register.simple_tag(takes_context=True)
def may_delete(context: template.Context, comment: Comment) -> bool:
    user: Any = context["user"]
    return comment.may_delete(user)
