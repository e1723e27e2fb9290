"""Federations over a network, with Flower. Only this package and `fedhca2.flower` import flwr."""

import os
from importlib.util import find_spec

# Flower reads these on import: no telemetry, no update check, no installation of what a message ships.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
os.environ |= QUIET

if find_spec("flwr") is None:
    from fedhca2.errors import UserError

    raise UserError("Flower", "not installed; run: pip install 'fedhca2[flower]'")
