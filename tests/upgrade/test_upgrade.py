"""Server and node are upgraded while a run trains; see `python -m tests.upgrade` for other releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.release import ROOT, NoHistory, earlier, last_release
from tests.upgrade.walk import FEW, upgrade


@pytest.mark.slow
def test_an_upgrade_keeps_the_data_and_the_run_that_trains(tmp_path: Path) -> None:
    try:
        revision = earlier()
    except NoHistory as error:
        pytest.skip(str(error))
    done = upgrade(revision, tmp_path)
    before, _, after, stored = done.steps
    assert FEW <= before < after < stored


def test_upgrades_start_from_the_last_release() -> None:
    changelog = "## 0.4.0, unreleased\n\n## 0.3.1, 2027-02-01\n\nCommit 1234abcd. Text.\n\n## 0.3.0, 2027-01-01\n"
    assert last_release(changelog) == ("0.3.1", "1234abcd")
    assert last_release((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1]
