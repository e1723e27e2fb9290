"""The same federation over a network: Flower carries orders and replies. Nothing else imports flwr."""

import os
from importlib.util import find_spec

# Flower reads these when it is imported: no telemetry, no look for updates, no installing of what a message brings.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
os.environ |= QUIET

if find_spec("flwr") is None:
    from fedhca2.errors import UserError

    raise UserError(["Flower should be installed, found none; pip install 'fedhca2[flower]'"])
