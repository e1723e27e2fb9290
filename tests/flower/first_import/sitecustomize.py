"""The first import of a federation's Python processes in a test: it shortens Flower's waiting times.

With CONTACTS, a file, they write down whom they look up or talk to; with AHEAD, another, their clock is ahead by as
many seconds as it says.
"""

import os
import sys
import time
from pathlib import Path


def listen(contacts: Path) -> None:
    def hear(event, arguments):
        host = None
        if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
            host = arguments[1][0]
        elif event == "socket.getaddrinfo":
            host = arguments[0]
        if host is not None:
            with contacts.open("a") as file:
                file.write(f"{host}\n")

    sys.addaudithook(hear)


def set_clock(path: Path) -> None:
    import datetime

    def ahead():
        return float(path.read_text() or 0)

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + datetime.timedelta(seconds=ahead())

    own = time.time
    instead = {own: lambda: own() + ahead(), datetime.datetime: Datetime}
    for module in list(sys.modules.values()):  # in a warm process some have imported these by name already
        for name, value in list(vars(module).items()):
            if value is own or value is Datetime.__base__:
                setattr(module, name, instead[value])


def hurry() -> None:
    """Replace Flower's constants: 3 s between checks for messages, 60 s for a node, 180 s for half a reply.

    10 s is the shortest interval of heartbeats that a SuperLink takes.
    """
    program = " ".join(sys.orig_argv[1:3])
    if "supernode" in program:
        from flwr.supercore import heartbeat
        from flwr.supernode import fleet_http_connection

        heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
        sleep = time.sleep
        time.sleep = lambda seconds: sleep(min(seconds, 0.7))
    elif "superlink" in program:
        from flwr.supercore.corestate import in_memory_corestate

        in_memory_corestate.OBJECT_PUSH_SESSION_TTL_SECONDS = 10


if "CONTACTS" in os.environ:
    listen(Path(os.environ["CONTACTS"]))
if "AHEAD" in os.environ:
    set_clock(Path(os.environ["AHEAD"]))
hurry()
