"""All processes of a server on one machine: `parlab serve`, and the stack that `manage.py demo` starts."""
