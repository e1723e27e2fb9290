"""Ctrl-C at awkward moments: during an import, and a second time."""

import os
import pty
import signal
import subprocess
import sys

IMPORTING = (
    "import signal; from fedhca2.__main__ import interrupt; signal.signal(signal.SIGINT, interrupt); import slow"
)
SWALLOWING = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
TWICE = "from fedhca2.federation.stopping import Stopping; stop = Stopping(); stop(2, None); stop(2, None)"


def test_ctrl_c_during_an_import_is_one_line(tmp_path):
    (tmp_path / "slow.py").write_text(SWALLOWING)
    found = subprocess.run([sys.executable, "-c", IMPORTING], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (130, "interrupted\n")


def test_a_second_ctrl_c_shows_the_cursor_again():
    ours, theirs = pty.openpty()
    found = subprocess.run([sys.executable, "-c", TWICE], stdout=theirs, stderr=subprocess.DEVNULL, check=False)
    os.close(theirs)
    assert (found.returncode, os.read(ours, 100)) == (-signal.SIGINT, b"\x1b[?25h")
