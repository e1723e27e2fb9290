"""`flower-supernode` that ends once it can no longer serve its site, so that the site starts it again.

Flower's command stays when it has given up on the SuperLink, and never gets another message: after a TLS handshake that
times out, which takes no more than a busy network or proxy, or after a heartbeat with an answer it does not expect.
"""

import logging
import os
import sys
import threading

from fedhca2.federation.flower.deploy.processes import serve_given_socket
from fedhca2.federation.flower.internals import flower_supernode

GAVE_UP = 1
log = logging.getLogger("fedhca2.site")


def main() -> None:
    """Run Flower's command, and end with it, or with the first of its threads that fails."""
    threading.excepthook = lambda failed: _end(failed.exc_value)
    serve_given_socket()
    try:
        flower_supernode()
    except Exception as error:
        _end(error)
    _end()


def _end(error: BaseException | None = None) -> None:
    if error is not None:
        log.error("the SuperNode failed", exc_info=error)
    sys.stdout.flush()
    os._exit(GAVE_UP)


if __name__ == "__main__":
    main()
