"""The first import of a federation's Python processes in a test: it shortens Flower's waiting times.

With CONTACTS, a file, they write down whom they look up or talk to; with AHEAD, another, their clock is ahead by as
many seconds as it says; with LOSING, another, one SuperNode takes tasks for dead at the request that it names.
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


def sleep_less() -> None:
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.7))


def lose_tasks(losing: Path) -> None:
    """Let the clock by which tasks live leap at a request: further than a task lives, less far than half a reply."""
    from datetime import timedelta

    from fastapi import FastAPI
    from flwr.supercore.corestate import in_memory_corestate

    request, answer, now = losing.read_text(), FastAPI.__call__, in_memory_corestate.now

    async def answer_late(self, scope, receive, send):
        if scope.get("path") == request:
            losing.unlink(missing_ok=True)  # the SuperNode after this one loses nothing
            in_memory_corestate.now = lambda: now() + timedelta(seconds=120)
        await answer(self, scope, receive, send)

    FastAPI.__call__ = answer_late


def hurry() -> None:
    """Replace Flower's constants: 3 s between checks for messages, 60 s for a node, 180 s for half a reply.

    10 s is the shortest interval of heartbeats that a SuperLink takes. A site waits less than its 5 s for a SuperNode.
    """
    program = " ".join(sys.orig_argv[1:4])
    if sys.orig_argv[2:4] == ["flower", "site"]:
        sleep_less()
    elif "supernode" in program:
        from flwr.supercore import heartbeat
        from flwr.supernode import fleet_http_connection

        if "LOSING" in os.environ and (losing := Path(os.environ["LOSING"])).exists():
            lose_tasks(losing)
        heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
        sleep_less()
    elif "superlink" in program:
        from flwr.supercore.corestate import in_memory_corestate

        in_memory_corestate.OBJECT_PUSH_SESSION_TTL_SECONDS = 10


if "CONTACTS" in os.environ:
    listen(Path(os.environ["CONTACTS"]))
if "AHEAD" in os.environ:
    set_clock(Path(os.environ["AHEAD"]))
hurry()
