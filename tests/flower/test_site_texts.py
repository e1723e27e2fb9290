"""What a site's errors tell the server: a fixed sentence, whatever names, paths and values are in them."""

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedhca2.clients.state_file import RoundIsOverError
from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.consent import RefusalError
from fedhca2.federation.flower.deploy.secagg_site import LargeValueError, SumRefusedError
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.records import CANNOT, header_of, pack
from fedhca2.federation.gate import UnusableError

PATIENT = "Anna Müller 1962-03-04, mammography"
SECRET = f"/srv/Mary's; ward 7, oncology/scans/{PATIENT}.png"
KINDS = (RoundIsOverError, UnusableError, SumRefusedError, LargeValueError, PermissionError, ValueError)
KINDS += (MemoryError, torch.OutOfMemoryError, type(PATIENT, (Exception,), {}))
ERRORS = [*(kind(SECRET) for kind in KINDS), UserError("", SECRET), RefusalError("share", SECRET), KeyError(PATIENT)]
ERRORS += [FileNotFoundError(2, "no such file", SECRET)]


class Failing(Site):
    """A site whose every step fails in some way."""

    def __init__(self, site, error):
        super().__init__(site.config)
        self.error = error

    def describe(self, invitation):
        raise self.error


def assert_only_its_log_says_more(grid, fleet, caplog):
    """Let `home` introduce itself, and compare what leaves it with its log."""
    fleet.gather()
    assert "its log says more" in fleet.registry.refused["home"]
    headers, words = str([header_of(reply.content) for reply in grid.up]), ("Anna", "ward", "scans", ".csv")
    assert [word for word in words if word in headers] == []
    assert "Anna" in "".join(record.message + str(record.exc_info) for record in caplog.records)


@pytest.mark.parametrize("error", ERRORS)
def test_the_text_of_an_error_stays_at_the_site(error, federation, caplog):
    grid, sites, fleet = federation(min_clients=2)
    grid.replace("home", lambda app: make_app(Failing(sites["home"], error)))
    assert_only_its_log_says_more(grid, fleet, caplog)


TASKS = {"depth": "depth", "normals": "normals"}
FILES = {
    "no folder": {"kind": "csv", "root": SECRET, "columns": TASKS},
    "no table": {"kind": "csv", "file": f"{PATIENT}.csv", "columns": TASKS},
    "other columns": {"kind": "csv", "columns": {**TASKS, "depth": PATIENT}},
    "no image": {"kind": "csv", "columns": TASKS},
    "no setting": {"kind": "csv", PATIENT: SECRET},
    "another kind": {"kind": PATIENT},
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_names_in_a_sites_files_stay_at_the_site(data, federation, tmp_path, caplog):
    rows = "".join(f'"{number} {PATIENT}.png","{PATIENT}.png","{PATIENT}.png",1\n' for number in range(9))
    (tmp_path / "labels.csv").write_text(f'image,depth,normals,"{PATIENT} "\n{rows}', "utf-8")
    own = {"root": str(tmp_path), **data}
    grid, sites, fleet = federation(min_clients=2)
    sites["home"].config = sites["home"].config.model_copy(update={"data": own})
    assert_only_its_log_says_more(grid, fleet, caplog)


def test_a_site_with_an_unreadable_file_sends_no_path(tmp_path):
    message = Message(pack({}), 1, "query")
    message.metadata.__dict__["_src_node_id"] = 1
    context = Context(0, 1, {"site": str(tmp_path / f"{PATIENT}.yaml")}, RecordDict(), {})
    header = header_of(make_app()(message, context).content)
    assert header == {CANNOT: "this site cannot read or write a file; its log says more"}
