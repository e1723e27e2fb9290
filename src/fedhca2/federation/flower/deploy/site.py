"""A site: one client of the federation, with its state on its own disk, asked over the network."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from fedhca2.clients import Client, ClientState, DeviceSlot, load_reply, load_state, save_reply, save_state
from fedhca2.clients.privacy import Privacy, privatise
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import build_client, step_kind
from fedhca2.federation.blind import Sketcher
from fedhca2.federation.flower.deploy.consent import check_order
from fedhca2.federation.flower.deploy.invitation import Invitation
from fedhca2.federation.flower.deploy.ledger import SPENT, Ledger, Sent, cost
from fedhca2.federation.flower.deploy.secagg_site import (
    KEYS,
    SHARE,
    UNMASK,
    UNREADABLE,
    Secrets,
    Terms,
    conceal,
    new_keys,
    share,
    unmask,
)
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.flower.records import MASKED, OWN, pack, to_array
from fedhca2.messages import Order, Profile, Reply
from fedhca2.params import Slot
from fedhca2.tasks import TASKS, LabelSpace, TaskSet
from fedhca2.tensor_files import as_file, contents
from fedhca2.whole_files import private_folder, write_whole

STATE, REPLY, MODEL = "state.safetensors", "reply.safetensors", "model.safetensors"
SECRETS = "sum.json"  # of secure aggregation in the current round
NO_FILE = (0, 0)
log = logging.getLogger("fedhca2.site")
Metrics = Mapping[str, Mapping[str, float]]  # {task: {metric: value}}


class RoundIsOverError(ValueError):
    """An order for a past round, whose reply the client no longer has."""


@dataclass
class _Seat:
    """The site's client in one run, in its current state."""

    run: str
    experiment: Experiment  # as the site agreed to it
    client: Client
    folder: Path
    round: int  # the last round it carried out, or -1
    stamp: tuple[int, int]  # of the state on disk, which another process may have changed


class Site:
    """Answers the server. Its work is on disk before it answers, so it can crash at any time."""

    def __init__(self, config: SiteConfig) -> None:
        self.config = config
        self._seat: _Seat | None = None

    @property
    def client(self) -> Client | None:
        """Its client in the current run, in memory; None before its first order, and after one that failed."""
        return self._seat.client if self._seat else None

    def describe(self, invitation: Invitation) -> Profile:
        """The profile of this site in the experiment; raises UserError if it has none."""
        return self._take_seat(invitation).client.profile

    def perform(self, invitation: Invitation, order: Order) -> Reply:
        """Carry out an order; a repeated order gets the same answer."""
        seat = self._take_seat(invitation)
        check_order(order, seat.experiment, self.config)
        if order.round == seat.round:
            return load_reply(seat.folder / REPLY)
        if order.round < seat.round:
            raise RoundIsOverError(f"round should be {seat.round} or later for {seat.client.name}, found {order.round}")
        self._seat = None  # a client that fails half-way is rebuilt from disk
        if seat.stamp == NO_FILE and (seat.client.privacy.noise or self.config.told_scores.noise):
            _save_seat(seat)  # with its key: if it repeats this order, the noise is the same
        kept = self._kept_losses(seat, order)
        told = replace(order, evaluate=order.evaluate and self._tells(order), compare=order.compare and not kept)
        reply = self._with_told_scores(seat, order, self._within_budget(seat, told))
        if kept:
            reply = _declining(reply, f"losses stay at the site: {kept}")
        if reply.declined:
            log.warning("%s", reply.declined)
        save_reply(seat.folder / REPLY, reply)
        if order.finish:
            write_whole(seat.folder / MODEL, as_file(contents(seat.client.personal.model.state_dict())))
        seat.round = order.round
        _save_seat(seat)
        self._seat = seat
        return reply

    def seen(self, invitation: Invitation, order: Order) -> Reply:
        """The same as the server may see it: with secure aggregation, rows stay here and only some sketches leave."""
        seat, reply = self._take_seat(invitation), self.perform(invitation, order)
        settings, method = seat.experiment.secure_aggregation, seat.experiment.resolved_method
        if settings is None:
            return reply
        sketcher = Sketcher(settings.sketch, seat.experiment.seed)
        sketched = {slot: row for slot, row in reply.rows.items() if slot.part in settings.sketched(method)}
        rows = {slot: sketcher.sketch(row, slot, order.round) for slot, row in sketched.items()}
        return replace(reply, rows=rows)

    def keys(self, invitation: Invitation, order: Order) -> list[str]:
        """New public keys for the sum that this site's rows go into after this order, if there is one."""
        seat = self._take_seat(invitation)
        if seat.experiment.secure_aggregation is None or not order.upload:
            return []
        secrets, keys = new_keys(Secrets.load(seat.folder / SECRETS), order.round)
        secrets.save(seat.folder / SECRETS)
        return keys

    def aggregate(self, invitation: Invitation, stage: str, round: int, request: Mapping[str, Any]) -> RecordDict:
        """Answer in one of the stages in which clients add up the rows of their last replies."""
        seat = self._take_seat(invitation)
        settings, name, path = seat.experiment.secure_aggregation, seat.client.name, seat.folder / SECRETS
        if settings is None or round != seat.round:
            raise RoundIsOverError(f"{name} should add up rows of round {seat.round}, found a request for {round}")
        secrets = Secrets.load(path)
        if stage == KEYS:  # to add up once more, without a client whose shares cannot be read
            secrets, keys = new_keys(secrets, round)
            secrets.save(path)
            return pack({"keys": keys})
        terms = self._terms(seat.experiment, round)
        if secrets.round != round:
            raise RoundIsOverError(f"{name} should have keys for round {round}, found those of {secrets.round}")
        if stage == SHARE:
            secrets, answer = share(secrets, request, name, settings)
        elif stage == UNMASK:
            secrets, answer = unmask(secrets, request, name, settings, terms)
        else:
            secrets, masked = conceal(secrets, request, name, settings, load_reply(seat.folder / REPLY).rows, terms)
            secrets.save(path)
            header = {UNREADABLE: list(secrets.unreadable)}
            return pack(header, {OWN: to_array([torch.from_numpy(masked.view(np.int32))], MASKED)})
        secrets.save(path)
        return pack(dict(answer))

    def _terms(self, experiment: Experiment, round: int) -> Terms:
        """Which sums this site helps with in a round of an experiment that it agreed to."""
        aggregators = experiment.resolved_method.aggregators(round)
        equal = [part for part, each in aggregators.items() if getattr(each, "by", "") == "clients"]
        return Terms(self.config.sums.rows, self.config.sums.share, frozenset(equal))

    def _within_budget(self, seat: _Seat, order: Order) -> Reply:
        """Carry out an order; a noised update is in the ledger before it leaves, and none leaves beyond the budget.

        A site whose budget is spent still takes rows.
        """
        client, ledger, budget = seat.client, Ledger.of(self.config), self.config.privacy
        noise = client.privacy.noise
        if not noise or not order.train or not any(slot.part in order.upload for slot in client.layouts):
            return client.perform(order)
        if not ledger.affords(seat.run, order.round, noise, budget):
            log.warning("%s: at most ε = %g at δ = %g", SPENT, budget.epsilon, budget.delta)
            return replace(client.perform(replace(order, train=False)), failed=SPENT)
        reply = client.perform(order)
        if reply.rows:
            ledger.charge(Sent.of(seat.run, order.round, noise, reply.rows), budget)
            entries = ledger.entries()
            log.info("%d noised updates: ε = %.4g at δ = %g", len(entries), cost(entries, budget.delta), budget.delta)
        return reply

    def _tells(self, order: Order) -> bool:
        told = self.config.told_scores.send
        return told == "all" or (told == "final" and order.finish)

    def _kept_losses(self, seat: _Seat, order: Order) -> str:
        """Why this site does not say what an order's rows did to its loss; empty if it does, or is not asked."""
        if not order.compare:
            return ""
        noise = seat.client.privacy.noise or self.config.told_scores.noise
        return "noise does not cover them" if noise else "" if self._tells(order) else self._sends

    def _with_told_scores(self, seat: _Seat, order: Order, reply: Reply) -> Reply:
        """The reply with the scores that this site reports; their noise is in the ledger before they leave."""
        told, ledger, budget = self.config.told_scores, Ledger.of(self.config), self.config.privacy
        if order.evaluate and not self._tells(order):
            return _without_scores(reply, self._sends)
        if not reply.metrics or not told.noise:
            return reply
        if not ledger.affords(seat.run, order.round, told.noise, budget, "scores"):
            return _without_scores(reply, SPENT)
        metrics, sent = noised_scores(
            reply.metrics,
            told.noise,
            seat.client.exchange.noise_key,
            order.round,
            seat.client.personal.model.tasks,
        )
        ledger.charge(Sent.of(seat.run, order.round, told.noise, sent, "scores"), budget)
        return replace(reply, metrics=metrics)

    @property
    def _sends(self) -> str:
        return f"it sends {self.config.told_scores.send} (scores in site.yaml)"

    def _take_seat(self, invitation: Invitation) -> _Seat:
        seat = self._seat
        if seat is None or seat.run != invitation.run or seat.stamp != _stamp(seat.folder / STATE):
            self._seat = seat = self._sit_down(invitation)
        return seat

    def _sit_down(self, invitation: Invitation) -> _Seat:
        """The client as it was after its last answer in this run, or at the start."""
        experiment, spec = invitation.accept(self.config)
        folder = private_folder(self.config.state / f"{experiment.name}-{invitation.run}" / spec.name)
        client = _build(experiment, spec.name, self._device())
        seat = _Seat(invitation.run, experiment, client, folder, -1, _stamp(folder / STATE))
        if seat.stamp != NO_FILE:
            state = load_state(folder / STATE)
            client.restore(state)
            seat.round = int(state.values["round"])
        return seat

    def _device(self) -> torch.device:
        if self.config.device != "auto":
            return torch.device(self.config.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _without_scores(reply: Reply, why: str) -> Reply:
    return replace(_declining(reply, f"scores stay at the site: {why}"), metrics={})


def _declining(reply: Reply, what: str) -> Reply:
    return replace(reply, declined="; ".join(filter(None, [reply.declined, what])))


def _save_seat(seat: _Seat) -> None:
    state = seat.client.state()
    save_state(seat.folder / STATE, ClientState(state.tensors, {**state.values, "round": seat.round}))
    seat.stamp = _stamp(seat.folder / STATE)


def _stamp(path: Path) -> tuple[int, int]:
    """A value that changes with every write of a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return NO_FILE
    return status.st_ino, status.st_mtime_ns


def _build(experiment: Experiment, name: str, device: torch.device) -> Client:
    data = open_data(experiment)
    shards = assign_shards(experiment, data)
    spec = next(spec for spec in experiment.specs if spec.name == name)
    place = DeviceSlot(device, step_kind(experiment, data, shards))
    return build_client(experiment, spec, data[spec.data], shards[name], place)


def noised_scores(
    metrics: Metrics, noise: float, key: bytes, round: int, tasks: TaskSet = TASKS
) -> tuple[Metrics, dict[Slot, Tensor]]:
    """Each task's main score with noise, and the noised numbers for the ledger.

    Scores are expressed relative to their range and clamped to it. So k scores form a vector no longer than √k for any
    data, and get the noise of an update with that clip, at the same cost.
    """
    main = {task: next(name for name in tasks[task].metrics if name in scores) for task, scores in metrics.items()}
    ranges = {task: tasks[task].metrics[name](LabelSpace(classes=1)).largest for task, name in main.items()}
    shares = {Slot("head", task): _share(metrics[task][name] / ranges[task]) for task, name in main.items()}
    sent = privatise(shares, Privacy(clip=sqrt(len(shares)), noise=noise), key, round)
    return {task: {name: float(sent[Slot("head", task)]) * ranges[task]} for task, name in main.items()}, sent


def _share(value: float) -> Tensor:
    return torch.tensor([min(max(value, 0.0), 1.0) if isfinite(value) else 0.0], dtype=torch.float64)
