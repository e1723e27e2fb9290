"""A whole run with a hostile site: the server and the honest sites are processes, and the run ends well."""

import json

import pytest
import torch
from deployment import Deployment
from federations import SWIN, small_experiment
from hostile import ATTACKS_IN_REPLIES, Letter, obliging
from hostile_sites import HONEST, HOSTILE, node, relative_drift
from safetensors.torch import load_file

from fedhca2.clients import DeviceSlot
from fedhca2.experiment import assign_shards, open_data
from fedhca2.experiment.build import build_clients
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.run_folder.records import Watcher

pytestmark = [pytest.mark.slow, pytest.mark.attack, pytest.mark.long]
IN_TURN = ["a header nested 200,000 deep", "5 GB in one chunk", "seconds of 10**400", "a failure in 500,000 letters"]


def models_without(experiment, absent):
    """Models of the same experiment in one process, without a client."""
    data = open_data(experiment)
    clients = build_clients(experiment, data, assign_shards(experiment, data), DeviceSlot(torch.device("cpu")))
    others = [client for client in clients if client.name != absent]
    fleet = InProcess(others)
    server = Server(experiment.resolved_method, fleet.profiles.values())
    run_rounds(server, fleet, experiment.rounds, 0, Watcher())
    return {client.name: client.personal.model.state_dict() for client in others}


def test_a_whole_run_leaves_the_others_where_they_would_be_without_a_hostile_site(tmp_path, tell):
    """The server and the honest sites are processes, and each round is another attack, ending with the scores."""
    experiment = small_experiment(model=SWIN, rounds=len(IN_TURN))
    with Deployment(tmp_path, experiment) as deployment, node(deployment, HOSTILE) as hostile:
        app = obliging(experiment, HOSTILE)
        for name in HONEST:
            deployment.start_site(name)
        serve = deployment.serve(
            deployment.config, tmp_path / "run", "--min-clients", "2", "--retries", "0", "--deadline", "240"
        )
        while serve.poll() is None:
            if message := hostile.receive(0.5):
                good = Letter.of(app(message).content)
                round = good.header.get("round", -1)  # an introduction has none
                spoil = ATTACKS_IN_REPLIES[[*IN_TURN, "metrics of unknown tasks"][round]] if round >= 0 else Letter.sent
                hostile.send(message, spoil(good))
        assert serve.returncode == 0, deployment.log("serve")
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        run = json.loads((tmp_path / "run" / "flower.json").read_text())["run"]
        state = tmp_path / "sites" / "state" / f"{experiment.name}-{run}"
        expected = models_without(experiment, HOSTILE)
        pairs = [(load_file(state / name / "model.safetensors"), expected[name]) for name in HONEST]
        drift = relative_drift(
            [found[key].flatten() for found, own in pairs for key in own],
            [tensor.flatten() for _, own in pairs for tensor in own.values()],
        )
        tell(
            "hostile site",
            "a whole run, an attack in every round",
            3,
            f"done; {HOSTILE}: {result['missing'][HOSTILE]}",
            drift,
        )
        assert drift == 0.0
