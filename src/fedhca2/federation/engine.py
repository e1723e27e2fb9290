"""The engine within this process: it opens the data sets here, for clients of their own, or that train one model."""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import inf
from statistics import fmean
from time import perf_counter
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import get_total_norm

from fedhca2.clients import BatchWatch, Client, DeviceSlot, on_device
from fedhca2.clients.evaluation import Arrays, sample_labels, sample_predictions
from fedhca2.clients.exchange import divergence
from fedhca2.clients.precompile import precompile
from fedhca2.clients.training import Learner, Losses
from fedhca2.cores import host_free
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, OpenData, Shard, assign_shards, open_data, partition_as_data, without_broken
from fedhca2.experiment.build import plan_clients, step_kind
from fedhca2.federation.in_process import ClientStore, InProcess, choose_devices, one_thread
from fedhca2.federation.membership import shards_after
from fedhca2.federation.server import check_method, layouts_of
from fedhca2.messages import Order, Reply
from fedhca2.models.multitask import slot_prefix
from fedhca2.objectives import Pooled
from fedhca2.params import Slot
from fedhca2.run_folder.folder import PARTITION
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import unusable
from fedhca2.run_folder.result import device_name
from fedhca2.run_folder.writer import RunFolder

STATE_BYTES = 8 * 4  # of a client's state for each value that it shares: the value, its moments, and rows
KEPT_SHARE = 1 / 8  # of a GPU's memory, for clients that stay on it between rounds
# Two clients at a time share a GPU if steps are small, so that it would wait for the interpreter; more gained nothing.
SMALL_MODEL = 1e7  # values
TINY = 1e-20  # a gradient shorter than this counts as none
SAMPLED = 24  # clients whose predictions a run keeps


class InProcessRun(InProcess):
    """The clients of one run in this process."""

    stops_at_once: bool = False
    all_stay: ClassVar[bool] = False  # in memory, and on the device

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        data: Mapping[str, OpenData],
        shards: Mapping[str, Shard],
        skipped: Mapping[str, list[str]],
    ) -> None:
        self.experiment, self.folder, self.data, self.shards, self.skipped = experiment, folder, data, shards, skipped
        self.files: Mapping[str, Any] = {PARTITION: partition_as_data(experiment, data, shards)}
        devices = choose_devices(experiment.devices)
        self.device = ", ".join(dict.fromkeys(map(device_name, devices)))  # the hardware, for the result
        self._step = step_kind(experiment, data, shards)
        slots = [DeviceSlot(device, self._step) for device in devices]
        with one_thread():
            plans = plan_clients(experiment, data, shards, slots[0])
        values = [sum(layout.numel for layout in plan.profile.layouts.values()) for plan in plans]
        is_free = self._step == "captured" and not (experiment.devices or self.all_stay)
        if is_free and len(plans) > 1 and max(values) <= SMALL_MODEL:
            slots += [DeviceSlot(slot.device, self._step) for slot in slots if slot.device.type == "cuda"]
        gigabytes = experiment.checkpoints.memory
        room = inf if self.all_stay else host_free() / 4 if gigabytes is None else gigabytes * 1e9
        super().__init__(ClientStore(plans, folder.states, room), slots, finished=self._save_final_model)
        self.own_code = experiment.own_code
        for slot in slots:
            slot.keeps = self.all_stay
            if slot.device.type == "cuda" and not self.all_stay:
                memory = torch.cuda.get_device_properties(slot.device).total_memory
                slot.keeps = sum(values) * STATE_BYTES <= memory * KEPT_SHARE
        by_kind: dict[str, list[str]] = {}
        for name, kind in self.kinds.items():
            by_kind.setdefault(kind, []).append(name)
        ranks = zip_longest(*by_kind.values())  # the first client of each kind, then the second, and so on
        sampled = [name for rank in ranks for name in rank if name is not None][:SAMPLED]
        self._predictions: dict[str, Arrays] = {name: {} for name in sampled}
        checkpoint = folder.checkpoint
        if checkpoint is not None:
            try:
                self.store.restore(checkpoint.path, checkpoint.clients)
            except (ValueError, KeyError) as error:
                raise unusable(checkpoint.path, error) from None
        check_method(experiment.resolved_method, self.profiles)
        # A client's noise key only exists here, so it is saved before any noised update leaves.
        self.checkpoint_first = checkpoint is None and bool(experiment.privacy.noise)
        self.checkpoint_every = experiment.checkpoints.every

    def baseline(self, experiment: Experiment, folder: RunFolder) -> "InProcessRun":
        """Clients with the same images."""
        return InProcessRun(experiment, folder, self.data, self.shards, self.skipped)

    def gather(self) -> None:
        """Take the clients' states from the checkpoint."""
        self.store.open()
        if self.checkpoint_first:
            self.each(list(self.profiles), lambda client: None)

    def warm_up(self) -> None:
        """Compile the clients' steps."""
        if self.home.type == "cuda" and self._step == "compiled":
            models = {spec.name: spec.model for spec in self.experiment.specs}
            kinds = {spec.kind: spec.name for spec in self.experiment.specs}
            precompile(models, [self.store.plan(name).build() for name in kinds.values()], self.home)

    def _save_final_model(self, client: Client) -> None:
        self.folder.save_model(client.name, client.personal.model)
        if client.name in self._predictions:
            self._predictions[client.name] = sample_predictions(client, "after")

    def finish(self) -> None:
        """Save the predictions of some clients for a few images, before and after training."""
        with one_thread():
            for name, after in self._predictions.items():
                first = self.store.plan(name).build()
                self.folder.save_samples(name, sample_labels(first) | sample_predictions(first, "before") | after)


class PooledRun(InProcessRun):
    """Clients that train one encoder, and one decoder and head for each task of the same classes.

    Their batches are spread evenly over a round, each with the labels that its client has. As many steps as clients go
    together each use a part of a batch of every one of them. They add the gradients; those of the encoder at one
    length, or the tasks with large losses would decide. Parameters and moments are the same for all; running
    statistics stay with the client, whose images they follow.
    """

    all_stay: ClassVar[bool] = True

    def gather(self) -> None:
        """Let all clients use the parameters and moments of the first that has them."""
        super().gather()
        self.pool.shutdown()
        self._work_at(self.slots[:1])  # each step follows another
        parameters, moments = dict[Hashable, Parameter](), defaultdict[Tensor, Any](dict)
        by_share = defaultdict[float, dict[Parameter, None]](dict)
        for name in self.profiles:
            self.store.prepare([name])
            with self.store.borrow(name, changed=False) as client:
                with on_device(client):  # where it stays
                    pass
                share_parameters(client, parameters)
                old = client.personal
                client.personal = client.shared = own = Learner(old.model, old.training)
                moments |= {each: old.optimizer.state[each] for each in own.parameters if each in old.optimizer.state}
                own.optimizer.state = moments
                for group in client.training.groups(client.personal.model):
                    by_share[group["share"]] |= dict.fromkeys(group["params"])
        training = self.experiment.training
        groups = [{"params": list(each), "share": share} for share, each in by_share.items()]
        self.optimizer = training.optimizer.build(groups, training.learning_rate, training.weight_decay)
        self.optimizer.state = moments
        self.objective = cast(Pooled, self.experiment.resolved_method.local)

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Let clients evaluate, and then those that should train do so together; at the end, each has its own model."""
        for name in [name for name, order in orders.items() if order.finish]:
            with self.store.borrow(name) as client:
                client.personal = client.shared = Learner(deepcopy(client.personal.model), client.training)
        replies = super().perform({name: replace(order, train=False) for name, order in orders.items()}, watch)
        if training := [order for order in orders.values() if order.train]:
            names = [name for name, order in orders.items() if order.train]
            with self._working() as working:
                working.append(trained := self.pool.submit(self._train, names, training[0].round, watch))
            replies = {name: replace(reply, **trained.result().get(name, {})) for name, reply in replies.items()}
        return replies

    def _train(self, names: Sequence[str], round: int, watch: BatchWatch) -> dict[str, dict[str, Any]]:
        """Train a round of these clients; returns what their replies say of it."""
        slot = self.slots[0]
        with ExitStack() as stack:
            stack.enter_context(self._explain("method pooled", self.experiment.training, slot))
            clients = {name: stack.enter_context(self.store.borrow(name)) for name in self.profiles}
            stack.enter_context(on_device(next(iter(clients.values()))))
            counts = {name: clients[name].steps for name in names}
            sums: dict[str, Losses] = {name: {} for name in names}
            seconds = dict.fromkeys(names, 0.0)
            turns, size = spread_evenly(counts), self.objective.clients or len(names)
            parts, balanced = min(size, self.experiment.training.batch_size), self.objective.balanced and size > 1
            gradients = {name: clients[name].gradients(round, parts, watch) for name in names}
            starts = [first for first in range(0, len(turns), size) for _ in range(parts)]
            for first in starts:
                rates, encoders = list[float](), defaultdict[Tensor | None, BalancedSum](BalancedSum)
                for name in turns[first : first + size]:
                    began = perf_counter()
                    encoder = list(clients[name].personal.model.encoder.parameters())
                    with encoders[next(iter(encoder), None)].adding(encoder) if balanced else nullcontext():
                        rate, losses = next(gradients[name])
                    rates.append(rate)
                    sums[name] = {task: loss + sums[name].get(task, 0.0) for task, loss in losses.items()}
                    seconds[name] += perf_counter() - began
                for each in encoders.values():
                    each.finish()
                for group in self.optimizer.param_groups:
                    group["lr"] = fmean(rates) * group["share"]
                self.optimizer.step()
                self.optimizer.zero_grad()
            means = {name: {task: float(loss) / counts[name] for task, loss in sums[name].items()} for name in names}
            for name in names:
                clients[name].personal.end_round()
                if fault := divergence(means[name], clients[name].personal.parameters):
                    raise UserError("method pooled", f"{name}: {fault}; a lower training.learning_rate may help")
        return {name: {"losses": means[name], "seconds": seconds[name]} for name in names}


class BalancedSum:
    """The sum of gradients of some parameters, each computed from other images, as if all were equally long."""

    def __init__(self) -> None:
        self.lengths: list[Tensor] = []
        self.total: dict[Parameter, Tensor] = {}

    @contextmanager
    def adding(self, parameters: Sequence[Parameter]) -> Iterator[None]:
        """Add the gradients that are computed in this block, at length 1; those of images without labels are 0."""
        for parameter in parameters:
            parameter.grad = None
        yield
        gradients = {each: each.grad for each in parameters if each.grad is not None}
        if not gradients:
            return
        length = get_total_norm(gradients.values())
        self.lengths.append(length)
        torch._foreach_mul_(list(gradients.values()), (length > TINY) / length.clamp_min(TINY))
        for each, own in gradients.items():
            self.total[each] = self.total[each].add_(own) if each in self.total else own

    def finish(self) -> None:
        """Leave the sum with the parameters, at the mean length."""
        if self.lengths:
            torch._foreach_mul_(list(self.total.values()), torch.stack(self.lengths).mean())
        for parameter, total in self.total.items():
            parameter.grad = total


def share_parameters(client: Client, shared: dict[Hashable, Parameter]) -> None:
    """Let a client use the shared parameters with the keys of its own, and share those whose keys are new.

    A key has the layouts of a row, and of a task its name and its head's classes.
    """
    model = client.personal.model
    for slot, tensors in model.slots().items():
        rows = (slot, Slot("head", slot.task)) if slot.task else (slot,)
        key = (slot.task, *(layouts_of(client.profile, row) for row in rows))
        for name in tensors if not slot.part.endswith("_norms") else ():
            path, _, leaf = (slot_prefix(slot) + name).rpartition(".")
            module = model.get_submodule(path)
            own = module.get_parameter(leaf)
            module.register_parameter(leaf, shared.setdefault((*key, name), own))


def spread_evenly(counts: Mapping[str, int]) -> list[str]:
    """Repeat every name as often as it counts, each spread evenly over the whole list.

    >>> spread_evenly({"a": 4, "b": 2})
    ['a', 'b', 'a', 'a', 'b', 'a']
    """
    times = [((index + 0.5) / count, name) for name, count in counts.items() for index in range(count)]
    return [name for _, name in sorted(times, key=lambda time: time[0])]


@dataclass(frozen=True)
class InProcessEngine:
    """Opens the data sets here."""

    file_names: ClassVar[Sequence[str]] = (PARTITION,)
    settings_stay: ClassVar[bool] = False

    def open(self, experiment: Experiment, folder: RunFolder) -> InProcessRun:
        """Open the data, assign images, and check the clients' saved states; a resumed run keeps its assignment."""
        check_in_process(experiment)
        data, files = open_data(experiment), RunFiles(folder.path)
        shards = shards_after(experiment, data, files) if files.begun else assign_shards(experiment, data)
        shards, skipped = without_broken(experiment, data, shards)
        fleet = PooledRun if isinstance(experiment.resolved_method.local, Pooled) else InProcessRun
        return fleet(experiment, folder, data, shards, skipped)


def check_in_process(experiment: Experiment) -> None:
    """Raise UserError if an experiment cannot run in this process."""
    choose_devices(experiment.devices)
    if experiment.secure_aggregation:
        fault = "hides rows from a remote server, and there is none here"
        raise UserError("secure_aggregation", f"{fault}; expected null, or --engine flower-local")
