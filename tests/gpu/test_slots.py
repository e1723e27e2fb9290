"""Several clients beside each other on a GPU, clients that stay there, and images that stay there: the same numbers."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch

from fedhca2.clients import DeviceSlot
from fedhca2.compiling import capture_graph
from fedhca2.experiment import assign_shards, open_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.engine import InProcessEngine
from fedhca2.federation.in_process import ClientStore, InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.run_folder.records import Watcher
from fedhca2.run_folder.writer import RunFolder
from small import SMALL, clients, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)
SETTINGS = {"training": {"batch_size": 4}, "model": {"encoder": {"name": "swin_micro", "drop_path": 0.2}}}


def states(slots, *, keeps=False, folder=None, **changes):
    """Everything that the clients hold after three rounds; between turns, their states may wait in a folder."""
    experiment = small(**{**SETTINGS, **changes})
    data = open_data(experiment)
    places = [DeviceSlot(GPU, keeps=keeps) for _ in range(slots)]
    store = ClientStore(plan_clients(experiment, data, assign_shards(experiment, data), places[0]), folder, room=0)
    store.open()
    last = {}

    def finished(client):
        for name, tensor in client.current.tensors.items():
            last[f"{client.name} {name}"] = tensor.to("cpu", copy=True)

    fleet = InProcess(store, places, finished=finished)
    run_rounds(Server(experiment.resolved_method, fleet.profiles.values()), fleet, 3, 0, Watcher())
    return last


def same(found, expected):
    return found.keys() == expected.keys() and all(tensor.equal(expected[name]) for name, tensor in found.items())


@pytest.mark.parametrize("method", ["fedhca2", "ditto", "fedprox"])
@pytest.mark.parametrize("keeps", [False, True])
def test_the_number_of_slots_does_not_show_in_the_result(method, keeps):
    assert same(states(3, keeps=keeps, method=method), states(1, method=method))


@pytest.mark.parametrize("method", ["fedhca2", "ditto"])
@pytest.mark.parametrize("keeps", [False, True])
def test_clients_built_from_models_of_others_give_the_same_result(method, keeps, tmp_path):
    several = [{"data": "outdoor", "split": ["semseg", "normals"], "copies": 3}]
    settings = {"training": {"batch_size": 2}, "clients": several, "method": method}
    assert same(states(2, keeps=keeps, folder=tmp_path / "states", **settings), states(1, **settings))


def test_images_that_are_read_anew_give_the_same_result(monkeypatch):
    expected = states(1)
    monkeypatch.setattr("fedhca2.data.batches.DeviceFeed.max_client_bytes", 0)
    assert same(states(1), expected)


def test_batches_stay_whole_while_another_thread_captures(monkeypatch):
    """Torch's allocator forgets what streams still use if that is recorded during a capture, in whatever thread."""
    monkeypatch.setattr("fedhca2.data.batches.DeviceFeed.max_client_bytes", 0)
    many = SMALL["data"] | {"outdoor": SMALL["data"]["outdoor"] | {"train": 128}}
    data = clients(small(**SETTINGS, data=many))["outdoor-semseg"].data.train
    slot, ended = DeviceSlot(GPU), Event()

    def capture():
        with torch.cuda.stream(torch.cuda.Stream()):
            values = torch.zeros(2**20, device=GPU)
            while not ended.is_set():
                capture_graph(lambda: [values.add_(1) for _ in range(200)])

    with ThreadPoolExecutor(1) as pool, torch.cuda.stream(slot.stream):
        capturing = pool.submit(capture)
        try:
            for epoch in range(20):
                found = []
                for batch in data.training(seed=0, client="road", epoch=epoch, feed=slot.feed):
                    torch.cuda._sleep(2_000_000)  # a millisecond, in which the next batches are prepared
                    found.append(batch.labels["semseg"].clone())
                    del batch
                expected = [batch.labels["semseg"] for batch in data.training(seed=0, client="road", epoch=epoch)]
                assert all(one.cpu().equal(other) for one, other in zip(found, expected, strict=True))
        finally:
            ended.set()
        capturing.result()


def test_images_that_are_prepared_a_batch_at_a_time_give_the_same_result(monkeypatch):
    expected = states(1)
    monkeypatch.setattr("fedhca2.data.batches.DeviceFeed.max_pixels", 0)
    assert same(states(1), expected)


def test_small_clients_share_a_gpu_two_at_a_time(tmp_path):
    fleet = InProcessEngine().open(small(**SETTINGS).resolve(), RunFolder.new(tmp_path / "run"))
    assert [slot.device for slot in fleet.slots] == [GPU, GPU]
