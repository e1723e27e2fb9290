"""Whom a site's process may speak with: the SuperNode beside it, and nobody else."""

import sys

LOOPBACK = "127.0.0.1"
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")


class StrangerError(ConnectionError):
    """Something in this process wanted to reach another computer, or another program on this one."""


def only_speak_with(ports: set[int]) -> None:
    """Refuse every other contact of this process, for as long as it lives: the set of ports may change.

    Whatever an experiment names, no library fetches it; what is on this machine's disk already is used.
    """

    def refuse_strangers(event: str, arguments: tuple[object, ...]) -> None:
        if event in LOOKUPS:
            host = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
            if host not in (LOOPBACK, LOOPBACK.encode()):
                raise StrangerError(f"a site should look up nobody, found {host!r:.100}")
        elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            address = arguments[1]
            if isinstance(address, tuple) and (address[0] != LOOPBACK or address[1] not in ports):
                raise StrangerError(f"a site should speak with its SuperNode alone, found {address!r:.100}")

    sys.addaudithook(refuse_strangers)
