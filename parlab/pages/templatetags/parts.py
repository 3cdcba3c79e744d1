"""Parts of a page that dashboards and reports can show, and the buttons that add them."""

from __future__ import annotations

from typing import Any

from django import template
from django.template.base import NodeList, Parser, Token
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

register = template.Library()


class PartNode(template.Node):
    """Renders its content; a request for the parts of a page (`publishing.page_parts`) also takes it."""

    def __init__(self, name: str, within: str, colour: str, content: NodeList) -> None:
        self.name, self.within, self.colour, self.content = name, within, colour, content

    def render(self, context: template.Context) -> SafeString:
        content = self.content.render(context)
        parts = getattr(context.get("request"), "parts", None)
        if parts is not None:
            colour = format_html(' data-colour="{}"', context.get(self.colour, "")) if self.colour else ""
            # Rules of its page apply below these classes.
            parts[self.name] = format_html('<div class="{}"{}>{}</div>', self.within, colour, content)
        return content


@register.tag
def part(parser: Parser, token: Token) -> PartNode:
    """`{% part goodput %}…{% endpart %}`; `{% part nodes clm colour %}`: below that class, in that colour."""
    _, name, *more = token.split_contents()
    content = parser.parse(("endpart",))
    parser.delete_first_token()
    within, colour = [*(word.strip('"') for word in more), "", ""][:2]
    return PartNode(name, within, colour, content)


@register.inclusion_tag("pages/parts/add.html", takes_context=True)
def add_part(context: template.Context, name: str, title: str, page: str = "") -> dict[str, Any]:
    """Return the buttons that add a part of a page to a dashboard or a report; without `page` of this one."""
    return _buttons(context, name, title, page)


@register.inclusion_tag("pages/parts/add.html", takes_context=True)
def add_figure(
    context: template.Context, title: str, page: str, query_name: str = "", query: object = "", more: str = ""
) -> dict[str, Any]:
    """Return the buttons that add the figure of an address, whose query is put together as in the figure's own."""
    queries = [urlencode({query_name or "version": str(query)}) if query else "", more if query else ""]
    return _buttons(context, "figure", title, f"{page}?{'&'.join(filter(None, queries))}".rstrip("?"))


def _buttons(context: template.Context, name: str, title: str, page: str) -> dict[str, Any]:
    request = context.get("request")
    own = request.get_full_path() if request is not None and not page else page
    is_shown = getattr(request, "parts", None) is None
    return {"name": name, "title": title, "page": own, "perms": context.get("perms"), "is_shown": is_shown}
