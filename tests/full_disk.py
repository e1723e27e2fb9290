"""A disk without room."""

import resource
from contextlib import contextmanager


@contextmanager
def files_of_at_most(length):
    """Let the system refuse larger files, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
