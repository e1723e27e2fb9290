"""A site that is told to stop does, whatever it is doing."""

import os
import signal
import subprocess
import sys

STUBBORN = """
import signal, time
from functools import partial
from fedhca2.cli.flower import exit_in_time

signal.signal(signal.SIGTERM, partial(exit_in_time, grace_s=0.2))
print("ready", flush=True)
while True:
    try:
        time.sleep(60)
    except SystemExit:
        pass  # as some libraries do on import
"""


def test_an_exit_that_a_library_catches_is_carried_out_all_the_same():
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, env=os.environ)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
