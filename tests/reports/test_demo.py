"""The report that a fresh demo holds."""

import pytest
from django.contrib.auth.models import User

from parlab.demo.content import published_three_nodes
from parlab.demo.report import demo_report
from parlab.lab.models import PictureJob, ReportVersion
from parlab.reports.blocks import Content, ProblemBlock, TableBlock


@pytest.mark.django_db
def test_the_demos_report_is_published_without_a_problem_and_waits_for_its_pictures(admin_user: User) -> None:
    demo_report(published_three_nodes(admin_user), admin_user)

    content = Content.model_validate(ReportVersion.objects.get().content)
    assert not [block.message for block in content.blocks.values() if isinstance(block, ProblemBlock)]
    assert [getattr(block, "text", "") for block in content.in_order()][:2] == [
        "11.21\N{NARROW NO-BREAK SPACE}s",
        "8.38\N{NARROW NO-BREAK SPACE}s",
    ]
    tables = [block for block in content.in_order() if isinstance(block, TableBlock)]
    assert [text.text for text in tables[2].rows[0]][:2] == ["ZeRO-3 data parallel", "OOM"]
    assert PictureJob.objects.get().state == "waiting"
