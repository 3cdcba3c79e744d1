"""The server: Django, Celery, Plotly."""
