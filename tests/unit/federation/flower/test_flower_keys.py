"""Keys and certificates work, and only their owner can read them."""

import ssl
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from command import refused
from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.link import make_keys


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "new"
    make_keys(folder, ["home", "garden"], ["link.example", "10.1.2.3"])
    return folder


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_secrets_are_for_their_owner_alone(keys):
    secret = ["ca.key", "superlink.key", "secret", "sites/home/node.key", "sites/home/secret"]
    modes = {stat.S_IMODE((keys / name).stat().st_mode) for name in secret}
    folders = {stat.S_IMODE(folder.stat().st_mode) for folder in (keys, keys / "sites" / "home")}
    assert (modes, folders) == ({0o600}, {0o700})


def test_the_certificate_names_the_hosts_and_belongs_to_its_key_and_authority(keys):
    found = certificate(keys / "superlink.crt")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "link.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.1.2.3"]
    found.verify_directly_issued_by(certificate(keys / "ca.crt"))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(keys / "superlink.crt", keys / "superlink.key")


@pytest.mark.parametrize("name", ["ca.crt", "superlink.crt"])
def test_a_certificate_is_valid_on_a_clock_that_is_set_back_by_hours(keys, name):
    assert certificate(keys / name).not_valid_before_utc < datetime.now(UTC) - timedelta(hours=12)


def test_every_site_has_a_key_of_its_own_and_its_public_part(keys):
    pairs = {}
    for site in ((keys / "sites" / name) for name in ("home", "garden")):
        public = load_ssh_public_key((site / "node.pub").read_bytes())
        pairs[(site / "node.pub").read_bytes()] = public
        assert public == load_ssh_private_key((site / "node.key").read_bytes(), None).public_key()
    assert len(pairs) == 2


def test_existing_keys_are_not_overwritten_and_a_site_name_is_no_path(keys, tmp_path):
    with pytest.raises(FileExistsError, match="expected a new or empty folder"):
        make_keys(keys, ["home"])
    with pytest.raises(UserError, match="a name: expected"):
        make_keys(tmp_path / "keys", ["../home"])


@pytest.mark.parametrize(
    ("name", "superlink", "error"),
    [
        ("home", "127.0.0.1:1", "127.0.0.1:1: expected a SuperLink that answers"),
        ("home", "127.0.0.1", "--superlink: expected HOST:PORT"),
        ("garden", "127.0.0.1:1", "node.pub: expected a public key"),
        ("shed", "127.0.0.1:1", "sites/shed/node.pub: No such file"),
    ],
)
def test_an_impossible_registration_is_an_error_in_one_line(keys, name, superlink, error):
    (keys / "sites" / "garden" / "node.pub").write_text("rubbish")
    assert error in refused("flower", "register", name, "--superlink", superlink, "--keys", keys)
