"""Pages of the administration have the frame of all others."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils.safestring import SafeString

from parlab.pages.templatetags.frame import admin_crumbs

PAGES = ["/admin/", "/admin/lab/", "/admin/lab/run/", "/admin/auth/user/add/", "/admin/auth/group/add/"]


def crumbs(page: str) -> str:
    found = re.search(r'<nav class="crumbs".*?</nav>', page, re.DOTALL)
    assert found is not None
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())


@pytest.mark.parametrize("url", PAGES)
def test_a_page_has_the_menu_the_tabs_and_the_palette(url: str, admin: Client) -> None:
    page = admin.get(url).content.decode()
    assert page.count('<nav class="rail"') == page.count('class="tabbar"') == page.count('id="palette"') == 1
    # Administration is open among the pages of Settings.
    assert f'<a href="{reverse("admin:index")}" class="on" aria-current="page">Administration</a>' in page
    assert f'<a href="{reverse("account")}">Account and tokens</a>' in page
    # No second menu, no second place.
    assert 'id="nav-sidebar"' not in page
    assert 'class="breadcrumbs"' not in page


def test_a_page_says_where_it_is(admin: Client, user: User) -> None:
    group = Group.objects.create(name="a <b> & &rsaquo; c")
    assert crumbs(admin.get("/admin/").content.decode()) == "Administration"
    assert crumbs(admin.get("/admin/lab/run/").content.decode()).startswith("Administration / ")
    page = admin.get(reverse("admin:auth_group_change", args=[group.pk])).content.decode()
    assert crumbs(page).endswith("/ a &lt;b&gt; &amp; &amp;rsaquo; c")
    assert '<a class="par" href="/admin/">Administration</a><span class="sep">/</span>' in page


def test_a_window_of_a_form_has_no_frame(admin: Client) -> None:
    page = admin.get("/admin/auth/group/add/?_popup=1").content.decode()
    assert 'class="rail"' not in page
    assert 'id="palette"' not in page


def test_a_place_of_one_part_is_its_title() -> None:
    assert admin_crumbs(SafeString('<div class="x"><a href="/admin/">Home</a></div>')) == "<b>Administration</b>"


def test_people_who_are_no_staff_see_no_administration(staff: Callable[..., Client], user: User) -> None:
    user.is_staff = False
    user.save()
    assert ">Administration<" not in staff().get(reverse("account")).content.decode()
