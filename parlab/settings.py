"""All settings, read from the environment, in sections by concern; `parlab.checks` reports invalid values.

The comment above a setting is its row in docs/operate/operations.md (`make docs-tables`).
"""

import secrets
from pathlib import Path

import django_stubs_ext
import environ
from django.core.exceptions import ImproperlyConfigured
from kombu import Queue

from parlab.client.settings import server_data_dir
from runners.wire.protocol import BACKLOG_QUEUE, CONTROL_QUEUE, INGEST_QUEUE

django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent
# templates/, static/ and docs/ are beside the packages in a checkout, and inside of parlab in a wheel.
IS_INSTALLED = (BASE_DIR / "parlab" / "templates").is_dir()
SHIPPED_DIR = BASE_DIR / "parlab" if IS_INSTALLED else BASE_DIR
env = environ.Env()

# --- data directory --------------------------------------------------------------------------------------------------


def default_data_dir() -> Path:
    """Return `data/` in a checkout, and `parlab` in the user's data directory (XDG) for an installed package."""
    if not IS_INSTALLED:
        return BASE_DIR / "data"
    directory = server_data_dir()
    if not directory.is_absolute():
        raise ImproperlyConfigured("this user has no home directory; set PARLAB_DATA_DIR, or --data of `parlab serve`")
    return directory


# Directory of the database, secrets, uploads and collected static files. Empty: `data/` of a checkout,
# `~/.local/share/parlab` of an installation.
DATA_DIR = Path(env.str("PARLAB_DATA_DIR", default="") or default_data_dir()).resolve()
DATA_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)


def secret(name: str) -> str:
    """Return a secret from the environment, or from the data directory, where the first start creates it."""
    from_environment = env.str(f"PARLAB_{name.upper()}", default="")
    if from_environment:
        return str(from_environment)
    path = DATA_DIR / name
    if not path.exists():
        # Two processes that start together must end up with the same secret: link() lets only one of them win.
        draft = DATA_DIR / f".{name}-{secrets.token_hex(4)}"
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(48))
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()


# --- security --------------------------------------------------------------------------------------------------------
# Django's debug pages; never enable them on a public server.
DEBUG = env.bool("DEBUG", default=False)
# Key of the sessions.
SECRET_KEY = secret("secret_key")
# Key that signs the messages to nodes.
NODE_KEY = secret("node_key").encode()
# Host names of the server.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
# Addresses behind a proxy: `https://parlab.example.org`.
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
# One switch for a server behind TLS: secure cookies, HSTS, redirect.
HTTPS = env.bool("PARLAB_HTTPS", default=False)
# Networks of the proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; of others they are dropped.
TRUSTED_PROXIES = env.list("PARLAB_TRUSTED_PROXIES", default=["127.0.0.1", "::1"] if HTTPS else [])
# Requests of one user a minute, to all web processes together; more are answered with 429. 0: no limit.
REQUESTS_PER_MINUTE = env.int("PARLAB_REQUESTS_PER_MINUTE", default=60_000)
# Requests that a web process computes for at a time; further ones wait in the order of their arrival.
REQUESTS_AT_ONCE = env.int("PARLAB_REQUESTS_AT_ONCE", default=32)
SECURE_SSL_REDIRECT = HTTPS
# Probes of containers ask uvicorn itself.
SECURE_REDIRECT_EXEMPT = [r"^health$", r"^ready$"]
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
# Browsers take a cookie with this prefix from this host alone, over https, for all paths.
SESSION_COOKIE_NAME = "__Host-sessionid" if HTTPS else "sessionid"
CSRF_COOKIE_NAME = "__Host-csrftoken" if HTTPS else "csrftoken"
# Hours after which a session ends if its user does nothing. 0: no limit.
SESSION_IDLE_H = env.float("PARLAB_SESSION_IDLE_H", default=72.0)
# Hours after the login at which a session ends in any case. 0: no limit but two weeks without a request.
SESSION_MAX_H = env.float("PARLAB_SESSION_MAX_H", default=336.0)
# The administration is open only to sessions with a second factor, or of single sign-on, whose issuer asks for one.
ADMIN_SECOND_FACTOR = env.bool("PARLAB_ADMIN_SECOND_FACTOR", default=False)
# Time for which browsers insist on HTTPS.
SECURE_HSTS_SECONDS = env.int("SECURE_HSTS_SECONDS", default=365 * 86400 if HTTPS else 0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
X_FRAME_OPTIONS = "DENY"
# Issuer of single sign-on by OpenID Connect, `https://login.example.org/realms/lab`; empty: none.
OIDC_ISSUER = env.str("PARLAB_OIDC_ISSUER", default="")
# ID of this server at the issuer.
OIDC_CLIENT_ID = env.str("PARLAB_OIDC_CLIENT_ID", default="parlab")
# Secret of this server at the issuer; empty: a public client.
OIDC_CLIENT_SECRET = env.str("PARLAB_OIDC_CLIENT_SECRET", default="")
# What the login page calls it.
OIDC_NAME = env.str("PARLAB_OIDC_NAME", default="single sign-on")
# Scopes that are asked for.
OIDC_SCOPES = env.list("PARLAB_OIDC_SCOPES", default=["openid", "profile", "email"])
# Claim with the groups of a person; dots lead into objects, as in `realm_access.roles`.
OIDC_GROUPS_CLAIM = env.str("PARLAB_OIDC_GROUPS_CLAIM", default="groups")
# Roles by group, as JSON: `{"gpu-admins": "admin", "vision": ["operator", "vision:maintainer"], "*": "viewer"}`.
SIGNON_GROUPS = env.str("PARLAB_SIGNON_GROUPS", default="")
# Header in which an authenticating proxy names the user, believed from PARLAB_TRUSTED_PROXIES alone; empty: none.
PROXY_USER_HEADER = env.str("PARLAB_PROXY_USER_HEADER", default="")
# Header in which it names their groups, separated by commas.
PROXY_GROUPS_HEADER = env.str("PARLAB_PROXY_GROUPS_HEADER", default="")
# Accounts that may use their password although single sign-on is set; empty: superusers. `*`: everybody.
PASSWORD_LOGINS = env.list("PARLAB_PASSWORD_LOGINS", default=[])
# No inline code and nothing from other hosts. The hashes allow the two style elements that Plotly adds to a page.
PLOTLY_STYLES = [
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='",
    "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='",
]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "style-src": ["'self'", *PLOTLY_STYLES],
        # Plotly converts figures to pictures through a blob.
        "img-src": ["'self'", "data:", "blob:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
        "report-uri": "/csp-report/",
    }
}

# --- applications ----------------------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "parlab.lab",
    "parlab.series",
    "parlab.ingest",
    "parlab.fleet",
    "parlab.notify",
    "parlab.tracking",
    "parlab.tuner",
    "parlab.watch",
    "parlab.pages",
    "parlab.serve",
    "parlab.demo",
]
MIDDLEWARE = [
    "parlab.pages.requests.turns.in_turns",
    "django.middleware.security.SecurityMiddleware",
    "parlab.pages.requests.polls.Polls",
    "csp.middleware.CSPMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "parlab.pages.requests.compression.TextCompression",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "parlab.pages.requests.idle_sessions.IdleSessions",
    "parlab.pages.signon.proxy_logins.ProxyLogins",
    "parlab.pages.requests.token_access.FigureTokens",
    "parlab.pages.requests.request_limits.RequestLimits",
    "parlab.pages.requests.viewers.Viewers",
    "parlab.pages.requests.audit.Audit",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "parlab.pages.requests.polls.Looks",
    "django.contrib.messages.middleware.MessageMiddleware",
    "parlab.pages.requests.admin_factor.AdminFactor",
    "parlab.pages.requests.forms_only.FormsOnly",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
_LOCAL = "parlab.steady.SteadyCache"
CACHES = {
    "default": {"BACKEND": "parlab.steady.ServerCache", "LOCATION": "default"},
    # Many small entries, which must not displace the others.
    "polls": {"BACKEND": _LOCAL, "LOCATION": "polls", "OPTIONS": {"MAX_ENTRIES": 20_000}},
}
ROOT_URLCONF = "parlab.urls"
ASGI_APPLICATION = "parlab.asgi.application"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"
AUTHENTICATION_BACKENDS = [
    "parlab.lab.services.access.rights.ProjectRoles",
    "parlab.lab.services.access.passwords.PasswordLogins",
]
ACCOUNT_ADAPTER = "parlab.pages.signon.adapters.Accounts"
ACCOUNT_FORMS = {"login": "parlab.pages.signon.forms.PasswordLogin"}
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]  # of the login page; nobody signs up by a form
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SESSION_REMEMBER = True
# Failed passwords wait by `lab.services.access.logins`; this bounds the work of logins, and guessing of second factors.
ACCOUNT_RATE_LIMITS = {"login": "120/m/ip"}
MFA_ADAPTER = "parlab.pages.signon.adapters.SecondFactors"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "parlab"
SOCIALACCOUNT_REAUTHENTICATION_REQUIRED = True
SOCIALACCOUNT_ADAPTER = "parlab.pages.signon.adapters.SignOns"
# A link and no form: browsers apply `form-action` of our policy to all redirects that follow a form.
SOCIALACCOUNT_LOGIN_ON_GET = True
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "provider_class": "parlab.pages.signon.provider.SingleSignOn",
        "APPS": [
            {
                "provider_id": "sso",
                "name": OIDC_NAME,
                "client_id": OIDC_CLIENT_ID,
                "secret": OIDC_CLIENT_SECRET,
                "settings": {"server_url": OIDC_ISSUER.rstrip("/"), "oauth_pkce_enabled": True, "scope": OIDC_SCOPES},
            }
        ]
        * bool(OIDC_ISSUER),
    }
}
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [SHIPPED_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# --- database --------------------------------------------------------------------------------------------------------
# `postgres://user:password@host/name` for a cluster.
DATABASES = {"default": env.db_url("DATABASE_URL", default=f"sqlite:///{DATA_DIR / 'parlab.sqlite3'}")}
DATABASES["default"]["CONN_MAX_AGE"] = 60
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
# Connections of a process to PostgreSQL, for which its requests wait; web processes, which answer each request in a
# thread of its own, take 40 by default. `max_connections` must exceed the sum, and 4 for each worker. 0: one for each
# thread.
DATABASE_POOL = env.int("PARLAB_DATABASE_POOL", default=0)
if DATABASES["default"]["ENGINE"].endswith("postgresql") and DATABASE_POOL > 0:
    DATABASES["default"]["CONN_MAX_AGE"] = 0
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": DATABASE_POOL, "timeout": 20}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        # Writers wait at the start of a transaction instead of failing in the middle of it.
        "transaction_mode": "IMMEDIATE",
        "timeout": 30,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=134217728;"
        " PRAGMA cache_size=-32000; PRAGMA journal_size_limit=67108864;",
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- imports ---------------------------------------------------------------------------------------------------------
# Raw points of series leave the database so many days after the end of their run; 0: never.
RAW_DAYS = env.float("PARLAB_RAW_DAYS", default=0.0)
# Object storage for artifacts, traces and archived points, a URL of fsspec: `s3://bucket/parlab`; empty: the directory.
STORAGE_URL = env.str("PARLAB_STORAGE_URL", default="")
# Archive of these points, a URL of fsspec; without it and object storage they are removed for ever.
ARCHIVE_URL = env.str("PARLAB_ARCHIVE_URL", default="") or (f"{STORAGE_URL.rstrip('/')}/archive" if STORAGE_URL else "")
# Largest imported file, and largest unpacked contents of an archive; other requests are limited to 16 MiB.
UPLOAD_LIMIT_MIB = env.int("PARLAB_UPLOAD_LIMIT_MIB", default=2_048)
# Memory of the process that reads an untrusted file (traces, stores of trackers, archives, pictures).
READ_MEMORY_MIB = env.int("PARLAB_READ_MEMORY_MIB", default=4_096)
# Processor time of such a process.
READ_SECONDS = env.int("PARLAB_READ_SECONDS", default=600)
# Not in /tmp, which may be small or in memory; uploads also wait here until they are imported.
FILE_UPLOAD_TEMP_DIR = DATA_DIR / "uploads"
FILE_UPLOAD_TEMP_DIR.mkdir(exist_ok=True, mode=0o700)

# --- nodes -----------------------------------------------------------------------------------------------------------
# Nodes may sign with a key derived from the node key of the server; otherwise each enrols with a code.
SHARED_NODE_KEY = env.bool("PARLAB_SHARED_NODE_KEY", default=False)
# A run whose node sends no heartbeat for this long is lost, unless its daemon asks for a longer lease.
LEASE_S = env.float("PARLAB_LEASE_S", default=30.0)
# Time for all nodes of a run to prepare it; nodes of Slurm and Kubernetes may take longer.
PREPARE_S = env.float("PARLAB_PREPARE_S", default=30.0)
# A run that waits for longer than this reserves the nodes that it needs; shorter runs fill gaps until then.
RESERVE_AFTER_S = env.float("PARLAB_RESERVE_AFTER_S", default=60.0)
# A node that ended so many attempts within the time below is excluded; 0: never.
BAD_NODE_ATTEMPTS = env.int("PARLAB_BAD_NODE_ATTEMPTS", default=3)
# The time within which these attempts count.
BAD_NODE_WINDOW_S = env.float("PARLAB_BAD_NODE_WINDOW_S", default=86_400.0)
# How long a node is excluded that ended attempts or failed a health check.
EXCLUDED_NODE_HOURS = env.float("PARLAB_EXCLUDED_NODE_HOURS", default=24.0)
# Nodes are measured when they join, daily, and when their software changes.
HEALTH_SWEEPS = env.bool("PARLAB_HEALTH_SWEEPS", default=True)
# A node that became slower is left out automatically.
LEAVE_OUT_NODES = env.bool("PARLAB_LEAVE_OUT_NODES", default=False)

# --- tracking --------------------------------------------------------------------------------------------------------
# Directory of the artifacts of reported runs and of the events of traces.
ARTIFACTS_DIR = Path(env.str("PARLAB_ARTIFACTS_DIR", default=str(DATA_DIR / "artifacts"))).resolve()
# Largest artifact.
ARTIFACT_LIMIT_MIB = env.int("PARLAB_ARTIFACT_LIMIT_MIB", default=2_048)
# What one user may keep in artifacts, traces and imported files; 0: no limit.
STORAGE_LIMIT_GIB = env.float("PARLAB_STORAGE_LIMIT_GIB", default=1_000.0)
# How many of them; 0: no limit.
STORAGE_LIMIT_FILES = env.int("PARLAB_STORAGE_LIMIT_FILES", default=1_000_000)
# What one project may keep of them; 0: no limit.
PROJECT_STORAGE_LIMIT_GIB = env.float("PARLAB_PROJECT_STORAGE_LIMIT_GIB", default=10_000.0)
# How many of them; 0: no limit.
PROJECT_STORAGE_LIMIT_FILES = env.int("PARLAB_PROJECT_STORAGE_LIMIT_FILES", default=10_000_000)
# A reporting run that is silent for longer is lost until it reports again.
TRACKING_SILENCE_S = env.float("PARLAB_TRACKING_SILENCE_S", default=1_800.0)

# --- watches ---------------------------------------------------------------------------------------------------------
# Protocols over which watched repositories are read; `git` and `http` are possible, too.
WATCH_PROTOCOLS = env.list("PARLAB_WATCH_PROTOCOLS", default=["https", "ssh"])
# Networks of watched repositories besides public addresses: `10.0.0.0/8,127.0.0.1`.
WATCH_NETWORKS = env.list("PARLAB_WATCH_NETWORKS", default=[])
# Directories whose repositories may be watched by their path; everybody can read their commits.
WATCH_PATHS = env.list("PARLAB_WATCH_PATHS", default=[])

# --- notifications ---------------------------------------------------------------------------------------------------
# Networks to which webhooks may go besides public addresses: `10.0.0.0/8,127.0.0.1`.
WEBHOOK_NETWORKS = env.list("PARLAB_WEBHOOK_NETWORKS", default=[])
# Mail server, `smtp+tls://user:password@host:587`; without it the server sends no mail.
_EMAIL_URL = env.str("EMAIL_URL", default="")
SENDS_MAIL = bool(_EMAIL_URL)
vars().update(env.email_url_config(_EMAIL_URL or "dummymail://"))
EMAIL_TIMEOUT = 15
# Sender of mails.
DEFAULT_FROM_EMAIL = env.str("PARLAB_MAIL_FROM", default="parlab@localhost")

# --- pictures --------------------------------------------------------------------------------------------------------
# Browser that draws pictures and PDF; empty: the first installed Chromium or Chrome.
CHROMIUM = env.str("PARLAB_CHROMIUM", default="")
# The sandbox of the browser, which needs user namespaces; off in the images, where the container confines it.
CHROMIUM_SANDBOX = env.bool("PARLAB_CHROMIUM_SANDBOX", default=True)
# Maximum size of an uploaded picture; a whole form may have 16 MiB (parlab.limits).
PICTURE_LIMIT_MIB = 12

# --- API -------------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        # The first class determines the status without credentials: scripts get 401, not 403.
        "parlab.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["parlab.api.readable.ReadableBody"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "parlab.api.errors.handle",
    "TEST_REQUEST_DEFAULT_FORMAT": "multipart",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "parlab",
    "DESCRIPTION": "Experiments, runs and findings; import of logs and documents. Numbers are in SI units.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "parlab.api.reporting.add_protocol",
        "parlab.api.schema.add_refusals",
    ],
    "ENUM_NAME_OVERRIDES": {"RunStateEnum": "parlab.lab.models.run.STATE_CHOICES"},
}

# --- Redis and Celery ------------------------------------------------------------------------------------------------
# The demo's Redis has its own port and password; this file gives them to commands in other terminals.
EMBEDDED_REDIS_FILE = DATA_DIR / "redis_url"
# `redis://:password@host:6379/0`; empty: the embedded Redis of the demo, or that of this machine.
REDIS_URL = env.str("REDIS_URL", default="") or (
    EMBEDDED_REDIS_FILE.read_text().strip() if EMBEDDED_REDIS_FILE.exists() else "redis://127.0.0.1:6379/0"
)
CELERY_BROKER_URL = REDIS_URL
CELERY_IMPORTS = [
    "parlab.ingest.tasks",
    "parlab.fleet.tasks",
    "parlab.notify.tasks",
    "parlab.tracking.tasks",
    "parlab.tuner.tasks",
    "parlab.watch.tasks",
    "parlab.publishing.tasks",
    "parlab.serve.tasks",
]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = CONTROL_QUEUE
PICTURES_QUEUE = "pictures"
NOTIFY_QUEUE = "notify"
CELERY_TASK_QUEUES = [
    Queue(name) for name in (CONTROL_QUEUE, INGEST_QUEUE, BACKLOG_QUEUE, PICTURES_QUEUE, NOTIFY_QUEUE)
]
# Drawing, waiting for receivers and analysing traces take seconds: separate workers do that, to avoid delaying
# heartbeats.
CELERY_TASK_ROUTES = {
    "parlab.publishing.draw": {"queue": PICTURES_QUEUE},
    "parlab.notify.*": {"queue": NOTIFY_QUEUE},
    "parlab.ingest.take_traces": {"queue": NOTIFY_QUEUE},
    "parlab.ingest.extend": {"queue": NOTIFY_QUEUE},
    "parlab.ingest.retain": {"queue": NOTIFY_QUEUE},
    "parlab.watch.poll": {"queue": NOTIFY_QUEUE},
}
CELERY_ACCEPT_CONTENT = ["json"]
# No limit: if Redis dies while a message is acknowledged, Celery never frees that message's prefetch slot, and a worker
# without free slots receives nothing. A solo worker takes one message at a time anyway.
CELERY_WORKER_PREFETCH_MULTIPLIER = 0
# Otherwise anyone with access to Redis could stop workers by a broadcast.
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Otherwise a worker ends when Redis refuses a write, as it does while its disk is full.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
# A page must not wait for an unavailable broker: beat sends again what could not be sent.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_connect_timeout": 2,
    "socket_timeout": 10,
    # The default of kombu waits six seconds, in steps of two, before it reports a refused connection.
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
}
CELERY_BEAT_SCHEDULER = "parlab.steady:SteadyScheduler"
CELERY_BEAT_SCHEDULE_FILENAME = str(DATA_DIR / "beat")
CELERY_BEAT_SCHEDULE = {
    # Without expiry: see parlab.periodic.
    "dispatch": {"task": "parlab.fleet.dispatch", "schedule": 1.0},
    "reap": {"task": "parlab.fleet.reap", "schedule": 5.0},
    "tune": {"task": "parlab.tuner.advance", "schedule": 2.0},
    "refresh watches": {"task": "parlab.watch.refresh", "schedule": 5.0},
    "reap tracked runs": {"task": "parlab.tracking.reap", "schedule": 15.0, "options": {"expires": 15}},
    "remove abandoned uploads": {"task": "parlab.tracking.prune", "schedule": 3_600.0, "options": {"expires": 600}},
    "draw again": {"task": "parlab.publishing.resume", "schedule": 20.0, "options": {"expires": 20}},
    "notify": {"task": "parlab.notify.deliver", "schedule": 5.0, "options": {"expires": 5}},
    "forget events": {"task": "parlab.notify.prune", "schedule": 3_600.0, "options": {"expires": 600}},
    "take traces": {"task": "parlab.ingest.take_traces", "schedule": 3.0, "options": {"expires": 3}},
    "extend partitions": {"task": "parlab.ingest.extend", "schedule": 600.0, "options": {"expires": 300}},
    "retain series": {"task": "parlab.ingest.retain", "schedule": 3_600.0, "options": {"expires": 600}},
    "read watched repositories": {"task": "parlab.watch.poll", "schedule": 30.0, "options": {"expires": 30}},
}

CELERY_BEAT_SCHEDULE |= {
    f"worker of {queue.name}": {
        "task": "parlab.serve.alive",
        "args": [queue.name],
        "schedule": 10.0,
        "options": {"queue": queue.name, "expires": 10},
    }
    for queue in CELERY_TASK_QUEUES
}

# --- static files ----------------------------------------------------------------------------------------------------
STATIC_URL = "static/"
STATIC_ROOT = DATA_DIR / "static"
STATICFILES_DIRS = [SHIPPED_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "servestatic.storage.CompressedManifestStaticFilesStorage"
    },
}

# --- language and time -----------------------------------------------------------------------------------------------
LANGUAGE_CODE = "en-us"
# Time zone of the server.
TIME_ZONE = env.str("TZ", default="UTC")
USE_I18N = False
USE_TZ = True

# --- metrics ---------------------------------------------------------------------------------------------------------
# Token with which Prometheus reads `/metrics`; empty: only tokens and sessions of accounts do.
METRICS_TOKEN = env.str("PARLAB_METRICS_TOKEN", default="")
# Networks whose addresses read `/metrics` without a token: `10.0.0.7/32`.
METRICS_NETWORKS = env.list("PARLAB_METRICS_NETWORKS", default=[])
# Most runs in `/metrics?runs=1`, the newest of those that are running.
METRICS_RUNS = env.int("PARLAB_METRICS_RUNS", default=200)

# --- logging ---------------------------------------------------------------------------------------------------------
# `line`, or `json`: each message is an object on one line, those of uvicorn and celery, too.
LOG_FORMAT = env.str("PARLAB_LOG_FORMAT", default="line")
_REFUSING_LOGGERS = [
    "request",
    *(
        f"security.{name}"
        for name in ("csrf", "DisallowedHost", "RequestDataTooBig", "TooManyFieldsSent", "SuspiciousOperation")
    ),
]
# These write lines of their own otherwise.
_OWN_LINES = ("django.server", "uvicorn", "uvicorn.access") if LOG_FORMAT == "json" else ()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"},
        "json": {"()": "parlab.client.json_log.JsonLines"},
    },
    "filters": {"refusals": {"()": "parlab.refused_requests.RefusedRequests"}},
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "json" if LOG_FORMAT == "json" else "line"}
    },
    # A filter of a logger does not see what its children log, so each one that logs refusals is named.
    "loggers": {
        **{f"django.{name}": {"filters": ["refusals"]} for name in _REFUSING_LOGGERS},
        **{name: {"handlers": ["console"], "propagate": False} for name in _OWN_LINES},
    },
    # Least severe messages in the log.
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="INFO")},
}
