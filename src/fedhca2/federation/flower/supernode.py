"""`flower-supernode` that ends once it has given up on the SuperLink, so that its site starts it again.

Flower gives up at the first failed TLS handshake, and a busy network or proxy is enough for one to time out. Its
command then stays: the thread that serves the site goes on, and never gets another message.
"""

import logging
import os
import sys

from fedhca2.federation.flower.internals import flower_supernode

GAVE_UP = 1


def main() -> None:
    """Run Flower's command, and end with it."""
    try:
        flower_supernode()
    except Exception:
        logging.getLogger("fedhca2.site").exception("the SuperNode failed")
    sys.stdout.flush()
    os._exit(GAVE_UP)


if __name__ == "__main__":
    main()
