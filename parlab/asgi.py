"""What the web server serves."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "parlab.settings")

application = get_asgi_application()
