"""Takes away what only Linux or only Unix has, and runs commands: `python without_linux.py run demo -- resume …`.

It shows what needs a module or function that other systems lack. It does not show how their own behave.
"""

import ctypes
import mmap
import multiprocessing
import os
import signal
import sys
from pathlib import Path

MODULES = ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty", "syslog", "uvloop")
FUNCTIONS = ("fork", "forkpty", "sched_getaffinity", "sched_setaffinity", "getloadavg", "killpg", "setsid", "getpgid")
FUNCTIONS += ("getuid", "geteuid", "getgid", "fchmod", "fchown", "chown", "mkfifo", "statvfs", "sysconf", "sync")
SIGNALS = ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGTSTP")


class Refuse:
    """Finds none of these modules."""

    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def take_away():
    sys.meta_path.insert(0, Refuse())
    for name in MODULES:
        sys.modules.pop(name, None)
    for module, names in ((os, FUNCTIONS), (signal, SIGNALS), (mmap, [n for n in dir(mmap) if n.startswith("MADV_")])):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    plain, context = ctypes.CDLL.__init__, multiprocessing.get_context

    def load(self, name, *rest, **options):
        if name is None:  # how prctl is found
            raise TypeError("no such library")
        plain(self, name, *rest, **options)

    def start(method=None):
        if method in ("fork", "forkserver"):
            raise ValueError(f"cannot find context for {method!r}")
        return context(method)

    ctypes.CDLL.__init__, multiprocessing.get_context = load, start


if __name__ == "__main__":
    take_away()
    sys.path.insert(0, str(Path(__file__).parent))
    import tiny_encoder  # noqa: F401
    from fedhca2.cli import app

    for command in " ".join(sys.argv[1:]).split(" -- "):
        code = app(command.split(), standalone_mode=False)
        assert not code, command
