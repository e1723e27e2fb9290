"""Keys and certificates work, and only their owner can read them."""

import ssl
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.link import make_keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "new"
    make_keys(folder, ["home", "garden"], ["link.example", "10.1.2.3"])
    return folder


@pytest.mark.parametrize("name", ["ca.key", "superlink.key", "secret", "sites/home/node.key", "sites/home/secret"])
def test_secrets_are_for_their_owner_alone(keys, name):
    assert stat.S_IMODE((keys / name).stat().st_mode) == 0o600


def test_folders_are_for_their_owner_alone(keys):
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (keys, keys / "sites" / "home")} == {0o700}


def test_the_certificate_names_the_hosts(keys):
    certificate = x509.load_pem_x509_certificate((keys / "superlink.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "link.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.1.2.3"]


def test_the_certificate_belongs_to_its_key(keys):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "superlink.crt", keys / "superlink.key")


def test_the_authority_signed_the_certificate(keys):
    authority = x509.load_pem_x509_certificate((keys / "ca.crt").read_bytes())
    x509.load_pem_x509_certificate((keys / "superlink.crt").read_bytes()).verify_directly_issued_by(authority)


@pytest.mark.parametrize("name", ["ca.crt", "superlink.crt"])
def test_a_certificate_is_valid_on_a_clock_that_is_set_back_by_hours(keys, name):
    certificate = x509.load_pem_x509_certificate((keys / name).read_bytes())
    assert certificate.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=12)


def test_every_site_has_a_key_of_its_own(keys):
    publics = {(keys / "sites" / site / "node.pub").read_bytes() for site in ("home", "garden")}
    assert len(publics) == 2


def test_the_public_key_is_that_of_the_private_one(keys):
    site = keys / "sites" / "home"
    private = load_ssh_private_key((site / "node.key").read_bytes(), None)
    assert load_ssh_public_key((site / "node.pub").read_bytes()) == private.public_key()


def test_keys_that_are_there_are_not_overwritten(keys):
    with pytest.raises(FileExistsError, match="expected a new or empty folder"):
        make_keys(keys, ["home"])


def test_a_site_name_is_no_path(tmp_path):
    with pytest.raises(UserError, match="a name: expected"):
        make_keys(tmp_path / "keys", ["../home"])


def register(keys, *names, superlink="127.0.0.1:1"):
    done = CliRunner().invoke(app, ["flower", "register", *names, "--superlink", superlink, "--keys", str(keys)])
    assert done.exit_code == 2
    return done.stderr


def test_to_register_without_a_superlink_is_an_error_in_a_line(keys):
    assert register(keys, "home").startswith("error: 127.0.0.1:1: expected a SuperLink that answers")


@pytest.mark.parametrize("address", ["127.0.0.1", ":8001", "link.example.org:", "link.example.org:https"])
def test_an_address_without_a_port_is_an_error_in_a_line(keys, address):
    assert register(keys, "home", superlink=address) == f"error: --superlink: expected HOST:PORT, got {address!r}\n"


def test_to_register_what_is_no_key_is_an_error_in_a_line(keys):
    (keys / "sites" / "garden" / "node.pub").write_text("rubbish")
    assert "node.pub: expected a public key" in register(keys, "garden")


def test_to_register_a_site_without_a_key_is_an_error_in_a_line(keys):
    assert register(keys, "shed").endswith("sites/shed/node.pub: No such file or directory\n")
