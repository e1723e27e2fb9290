"""Clients with models of their own."""

import pytest

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from small import SMALL
from tiny_encoder import TINY


def models(*own, **model):
    """The models of clients whose entries have these settings, in an experiment with this model."""
    clients = [
        {"name": f"c{i}", "data": "indoor", "tasks": ["depth"], **({"model": each} if each else {})}
        for i, each in enumerate(own)
    ]
    values = {**SMALL, "model": {"encoder": {"name": TINY}, **model}, "clients": clients}
    return [spec.model for spec in Experiment.parse(values).specs]


def test_a_client_changes_only_what_it_names_unless_it_has_another_encoder():
    own = [{}, {"encoder": {"weights": "none"}, "decoder_width": 8}, {"encoder": {"name": "swin_micro"}}]
    first, second, third = models(*own, encoder={"name": TINY, "drop_path": 0.2})
    assert (second.encoder, second.decoder_width) == (first.encoder, 8)
    assert third.encoder.drop_path == 0


def test_a_clients_weights_have_a_digest_of_their_own(tmp_path):
    (tmp_path / "own").write_bytes(b"weights")
    own = {"encoder": {"name": "swin_micro", "weights": str(tmp_path / "own")}}
    assert models(own, encoder={"name": TINY, "sha256": "0" * 64})[0].encoder.sha256 is None
    entry = {"name": "c", "data": "indoor", "tasks": ["depth"], "model": own}
    written = Experiment.parse({**SMALL, "clients": [entry]}).to_dict()
    assert len(written["clients"][0]["model"]["encoder"]["sha256"]) == 64
    assert Experiment.parse(written).to_dict() == written


FAULTS = [
    ({"encoder": {"nmae": "x"}}, r"clients\[1\]\.model\.encoder\.nmae: unknown key. Did you mean"),
    ({"decoder_width": 3}, r"clients\[1\]\.model\.decoder_width: expected .* 4, got 3"),
    ({"encoder": 3}, r"clients\[1\]\.model\.encoder: .*got 3"),
    ({"encoder": {"weights": "scenes"}}, f"expected the same weights .* {TINY!r}, got .*none"),
]


@pytest.mark.parametrize(("settings", "line"), FAULTS)
def test_a_fault_in_a_clients_model_names_the_setting(settings, line):
    with pytest.raises(UserError, match=line):
        models({}, settings)
