"""Where clients train."""

from functools import partial
from threading import current_thread

import pytest
import torch

from fedhca2.clients import DeviceSlot
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import ClientPlan, plan_clients, step_kind
from fedhca2.federation.in_process import ClientStore, InProcess, choose_devices
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.run_folder.records import Watcher
from small import SMALL, small

CPU = torch.device("cpu")


def plans_of(experiment, slot):
    data = open_data(experiment)
    return plan_clients(experiment, data, assign_shards(experiment, data), slot)


def models(devices):
    experiment = small(model={"encoder": {"name": "swin_micro", "drop_path": 0.2}})
    slots = [DeviceSlot(CPU) for _ in range(devices)]
    clients = [plan.build() for plan in plans_of(experiment, slots[0])]
    fleet = InProcess(clients, slots)
    run_rounds(Server(experiment.resolved_method, fleet.profiles.values()), fleet, 2, 0, Watcher())
    return [client.personal.model.state_dict() for client in clients]


@pytest.mark.slow
def test_the_result_does_not_depend_on_the_number_of_devices():
    for one, several in zip(models(1), models(3), strict=True):
        assert all(tensor.equal(several[name]) for name, tensor in one.items())


def test_clients_that_were_built_before_start_with_the_same_values():
    """A run builds some clients to measure how many fit together on a GPU, and then all for training."""
    drawing, plans = [], plans_of(small(), DeviceSlot(CPU))
    expected = {plan.profile.client: plan.build().state().tensors for plan in plans}

    def noted(plan):
        drawing.append(current_thread())
        ClientPlan.draw(plan)

    for plan in plans:
        plan.draw = partial(noted, plan)
    fleet = InProcess(ClientStore(plans), [DeviceSlot(CPU)] * len(plans))
    found = fleet.each(expected, lambda client: client.state().tensors)
    assert all(tensor.equal(expected[name][key]) for name, tensors in found.items() for key, tensor in tensors.items())
    assert set(drawing) == {current_thread()}  # torch has one generator, so threads would disturb each other


def test_a_missing_device_is_an_error():
    with pytest.raises(UserError, match=r"^devices: 'cuda:9' does not exist. .*cpu"):
        choose_devices(["cpu", "cuda:9"])


@pytest.mark.parametrize(("gpus", "chosen"), [(0, [CPU]), (2, [torch.device("cuda", 0), torch.device("cuda", 1)])])
def test_by_default_all_gpus_are_used_or_the_cpu(monkeypatch, gpus, chosen):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert choose_devices() == chosen


@pytest.mark.parametrize(
    ("change", "kind"),
    [({}, "captured"), ({"rounds": 10**7}, "compiled"), ({"training": {"step": "plain", "batch_size": 2}}, "plain")],
)
def test_only_long_runs_are_compiled(change, kind):
    experiment = Experiment.parse({**SMALL, **change})
    data = open_data(experiment)
    assert step_kind(experiment, data, assign_shards(experiment, data)) == kind


def test_clients_of_one_kind_share_their_evaluation_images():
    """So images that stay on a GPU are moved there once."""
    experiment = small(clients=[{"data": "outdoor", "split": ["semseg", "normals"], "copies": 2}])
    plans = plans_of(experiment, DeviceSlot(CPU))
    clients = {plan.profile.client: plan.build() for plan in plans}
    one, other, another = (clients[f"outdoor-{name}"].data for name in ("semseg-1", "semseg-2", "normals-1"))
    assert one.val is other.val
    assert one.val is not another.val
    assert one.train is not other.train
    again = plans[0].build(clients[plans[0].profile.client].state())
    assert again.data.train is clients[again.name].data.train
