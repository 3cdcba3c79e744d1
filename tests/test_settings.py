"""Settings of the test suite itself, so that no test can touch a person's data."""

from pathlib import Path

from django.conf import settings
from django.db import connection


def test_tests_have_a_data_directory_of_their_own(db: None) -> None:
    assert settings.DATA_DIR.name.startswith("parlab-test-")
    assert Path(settings.BASE_DIR) / "data" != settings.DATA_DIR


def test_the_database_answers(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
