"""Tasks that beat sends over and over."""

from django.core.cache import cache


def is_due(task: str, every_s: float) -> bool:
    """Return whether a periodic task should do its work now: at most once in so many seconds per process.

    A worker that lags behind has many of these messages in its queue, and one is enough. They must not expire there
    instead, because then a worker that stays behind would never do the work, such as starting runs.
    """
    return cache.add(f"periodic.{task}", True, every_s)
