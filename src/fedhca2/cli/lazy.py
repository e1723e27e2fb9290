"""The modules that commands work with. Each is imported when it is first used: help and Tab need none of them."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx
    import pydantic

    from fedhca2 import config, experiment, imports, methods, runs, tasks
    from fedhca2.clients import privacy
    from fedhca2.data import check, rendered
    from fedhca2.deployment import export, trained
    from fedhca2.federation import comparison_runs, engine, forecast, run
    from fedhca2.federation.flower import fleet, wait
    from fedhca2.federation.flower.deploy import link, site_config, superlink, worker
    from fedhca2.reports import comparison, console, drawings, layouts, pictures, tables, tracking, variants
    from fedhca2.reports.figures import transfer
    from fedhca2.reports.page import write
    from fedhca2.run_folder import files, listing, reader, records, writer

_MODULES = {
    "": "httpx pydantic",
    "fedhca2.": "config experiment imports methods runs tasks",
    "fedhca2.clients.": "privacy",
    "fedhca2.data.": "check rendered",
    "fedhca2.deployment.": "export trained",
    "fedhca2.federation.": "comparison_runs engine forecast run",
    "fedhca2.federation.flower.": "fleet wait",
    "fedhca2.federation.flower.deploy.": "link site_config superlink worker",
    "fedhca2.reports.": "comparison console drawings layouts pictures tables tracking variants",
    "fedhca2.reports.figures.": "transfer",
    "fedhca2.reports.page.": "write",
    "fedhca2.run_folder.": "files listing reader records writer",
}


def __getattr__(name: str) -> ModuleType:
    for package, names in _MODULES.items():
        if name in names.split():
            return import_module(package + name)
    raise AttributeError(name)
