"""The Flower app: the names of two objects in this package. A run needs one; the code is what each site installed."""

from pathlib import Path

from fedhca2.version import __version__
from fedhca2.whole_files import ORDINARY, write_whole

APP = f"""\
[project]
name = "fedhca2"
version = "{__version__}"
description = "Federated multi-task learning for clients that do not share a task list"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedhca2"

[tool.flwr.app.components]
serverapp = "fedhca2.federation.flower.deploy.server_app:app"
clientapp = "fedhca2.federation.flower.deploy.client_app:app"

[tool.flwr.app.config]
experiment = "demo"
out = "runs/flower"
deadline = 3600.0
min-clients = 0
retries = 2
wire = "float32"
spool = false
"""


def write_app(folder: Path, mark: str = "") -> None:
    """Write the app's folder, for `flwr run`; apps with different marks have different hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "pyproject.toml", f"{APP}{mark and '# '}{mark}\n".encode(), ORDINARY)
