"""What scripts import: runs, their spool on disk, and the server's objects. Only the standard library, Python 3.9.

`import parlab` offers the public names. This package imports none of them: a supervisor loads the journal alone.
"""
