"""Server and node are upgraded while a run trains; see `python -m tests.upgrade` for other releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.release import NoHistory, earlier
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
