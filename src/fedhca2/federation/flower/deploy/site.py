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

from fedhca2.clients import Client, ClientState, DeviceSlot, load_reply, load_state, save_state
from fedhca2.clients.privacy import Privacy, privatise
from fedhca2.clients.state_file import REPLY_FILE, STATE_FILE, RoundIsOverError, reply_again, save_answer, tensor_file
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import plan_clients, step_kind
from fedhca2.federation.flower.deploy.consent import Invitation, check_order
from fedhca2.federation.flower.deploy.secagg_site import Secrets, SumMember, new_keys
from fedhca2.federation.flower.deploy.site_config import SPENT, Ledger, Sent, SiteConfig, cost
from fedhca2.federation.flower.records import MASKED, OWN, pack, to_array
from fedhca2.federation.sum_server import sketch_row
from fedhca2.messages import Order, Profile, Reply
from fedhca2.params import Slot
from fedhca2.tasks import TASKS, TaskSet
from fedhca2.whole_files import private_folder, write_whole

MODEL_FILE, SECRETS_FILE = "model.safetensors", "sum.json"  # the trained model; keys of the current round's sum
log = logging.getLogger("fedhca2.site")
Metrics = dict[str, dict[str, float]]  # {task: {metric: value}}


@dataclass
class _Session:
    """The site's client in one run, in its current state."""

    run: str
    experiment: Experiment  # as the site agreed to it
    client: Client
    folder: Path
    round: int  # the last round it carried out, or -1
    stamp: tuple[int, int] | None  # of the state on disk, which another process may have changed


class Site:
    """Answers the server. Its work is on disk before it answers, so it can crash at any time."""

    def __init__(self, config: SiteConfig) -> None:
        self.config = config
        self._current: _Session | None = None

    @property
    def client(self) -> Client | None:
        """Its client in the current run, in memory; None before its first order, and after one that failed."""
        return self._current.client if self._current else None

    def describe(self, invitation: Invitation) -> Profile:
        """The profile of this site in the experiment; raises UserError if it has none."""
        return self._session(invitation).client.profile

    def perform(self, invitation: Invitation, order: Order) -> Reply:
        """Carry out an order; a repeated order gets the same answer."""
        session = self._session(invitation)
        check_order(order, session.experiment, self.config)
        if reply := reply_again(session.folder, order, session.round):
            return reply
        self._current = None  # a client that fails half-way is rebuilt from disk
        if session.stamp is None and (session.client.privacy.noise or self.config.reported_scores.noise):
            state = session.client.state()  # with its key: if it repeats this order, the noise is the same
            save_state(session.folder / STATE_FILE, ClientState(state.tensors, {**state.values, "round": -1}))
        reply = self._carry_out(session, order)
        if reply.declined:
            log.warning("%s", reply.declined)
        if order.finish:
            write_whole(session.folder / MODEL_FILE, tensor_file(session.client.personal.model.state_dict()))
        save_answer(session.folder, reply, session.client.state())
        session.round, session.stamp = order.round, _stamp(session.folder)
        self._current = session
        return reply

    def seen(self, invitation: Invitation, order: Order) -> Reply:
        """The same as the server may see it: with secure aggregation, rows stay here and only some sketches leave."""
        reply, experiment = self.perform(invitation, order), self._session(invitation).experiment
        settings = experiment.secure_aggregation
        if settings is None:
            return reply
        kind, parts = (settings.sketch, experiment.seed), settings.sketched(experiment.resolved_method)
        rows = {slot: row for slot, row in reply.rows.items() if slot.part in parts}
        return replace(reply, rows={slot: sketch_row(row, *kind, slot, order.round) for slot, row in rows.items()})

    def keys(self, invitation: Invitation, order: Order) -> list[str]:
        """New public keys for the sum that this site's rows go into after this order, if there is one."""
        session = self._session(invitation)
        if session.experiment.secure_aggregation is None or not order.upload:
            return []
        secrets, keys = new_keys(Secrets.load(session.folder / SECRETS_FILE), order.round)
        secrets.save(session.folder / SECRETS_FILE)
        return keys

    def aggregate(self, invitation: Invitation, stage: str, round: int, request: Mapping[str, Any]) -> RecordDict:
        """Answer in one of the stages in which clients add up the rows of their last replies."""
        session = self._session(invitation)
        settings, name, path = session.experiment.secure_aggregation, session.client.name, session.folder / SECRETS_FILE
        if settings is None or round != session.round:
            raise RoundIsOverError(f"a sum of {name}: expected round {session.round}, got {round}")
        aggregators = session.experiment.resolved_method.aggregators(round)
        equal = [part for part, each in aggregators.items() if getattr(each, "by", "") == "clients"]
        secrets, reply = Secrets.load(path), session.folder / REPLY_FILE
        member = SumMember(secrets, name, settings, self.config.sums, equal, lambda: load_reply(reply).rows)
        header, masked = member.answer(stage, round, request)
        member.secrets.save(path)
        arrays = {} if masked is None else {OWN: to_array([torch.from_numpy(masked.view(np.int32))], MASKED)}
        return pack(dict(header), arrays)

    def _carry_out(self, session: _Session, order: Order) -> Reply:
        """Carry out a new order; what leaves, and with which noise, is as the site's own file says.

        Noised scores are in the ledger before they leave.
        """
        scores = self.config.reported_scores
        reports = scores.send == "all" or (scores.send == "final" and order.finish)
        withheld = f"it sends {scores.send} (scores in site.yaml)"
        noised = session.client.privacy.noise or scores.noise
        declined = []
        if order.compare and (noised or not reports):
            declined.append(f"losses stay at the site: {'noise does not cover them' if noised else withheld}")
        reduced = replace(order, evaluate=order.evaluate and reports, compare=order.compare and not declined)
        reply = self._within_budget(session, reduced)
        if order.evaluate and not reports:
            reply = replace(reply, metrics={})
            declined.insert(0, f"scores stay at the site: {withheld}")
        elif reply.metrics and scores.noise:
            ledger, budget = Ledger.of(self.config), self.config.privacy
            metrics: Metrics = {}
            if ledger.affords(session.run, reply.round, scores.noise, budget, "scores"):
                key, tasks = session.client.exchange.noise_key, session.client.personal.model.tasks
                metrics, sent = add_noise(reply.metrics, scores.noise, key, reply.round, tasks)
                ledger.charge(Sent.of(session.run, reply.round, scores.noise, sent, "scores"), budget)
            else:
                declined.insert(0, f"scores stay at the site: {SPENT}")
            reply = replace(reply, metrics=metrics)
        return replace(reply, declined="; ".join(filter(None, [reply.declined, *declined])))

    def _within_budget(self, session: _Session, order: Order) -> Reply:
        """Carry out an order; a noised update is in the ledger before it leaves, and none leaves beyond the budget.

        A site whose budget is spent still takes rows.
        """
        client, ledger, budget = session.client, Ledger.of(self.config), self.config.privacy
        noise = client.privacy.noise
        if not noise or not order.train or not any(slot.part in order.upload for slot in client.layouts):
            return client.perform(order)
        if not ledger.affords(session.run, order.round, noise, budget):
            log.warning("%s: at most ε = %g at δ = %g", SPENT, budget.epsilon, budget.delta)
            return replace(client.perform(replace(order, train=False)), failed=SPENT)
        reply = client.perform(order)
        if reply.rows:
            ledger.charge(Sent.of(session.run, order.round, noise, reply.rows), budget)
            entries = ledger.entries()
            log.info("%d noised updates: ε = %.4g at δ = %g", len(entries), cost(entries, budget.delta), budget.delta)
        return reply

    def _session(self, invitation: Invitation) -> _Session:
        session = self._current
        if session is None or session.run != invitation.run or session.stamp != _stamp(session.folder):
            self._current = session = self._open_session(invitation)
        return session

    def _open_session(self, invitation: Invitation) -> _Session:
        """The client as it was after its last answer in this run, or at the start."""
        experiment = invitation.accept(self.config)
        [spec] = experiment.specs
        folder = private_folder(self.config.state / f"{experiment.name}-{invitation.run}" / spec.name)
        data = open_data(experiment)
        shards = assign_shards(experiment, data)
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        device = torch.device(automatic if self.config.device == "auto" else self.config.device)
        slot = DeviceSlot(device, step_kind(experiment, data, shards))
        [plan] = plan_clients(experiment, data, shards, slot)
        client = plan.build()
        session = _Session(invitation.run, experiment, client, folder, -1, _stamp(folder))
        if session.stamp:
            state = load_state(folder / STATE_FILE)
            client.restore(state)
            session.round = int(state.values["round"])
        return session


def _stamp(folder: Path) -> tuple[int, int] | None:
    """A value that changes with every write of a client's state; None if there is none."""
    try:
        status = (folder / STATE_FILE).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def add_noise(
    metrics: Metrics, noise: float, key: bytes, round: int, tasks: TaskSet = TASKS
) -> tuple[Metrics, dict[Slot, Tensor]]:
    """Each task's main score with noise, and the noised numbers for the ledger.

    Scores are expressed relative to their range and clamped to it. So k scores form a vector no longer than √k for any
    data, and get the noise of an update with that clip, at the same cost.
    """
    main = {task: next(name for name in tasks[task].metrics if name in scores) for task, scores in metrics.items()}
    ranges = {task: tasks[task].empty_metrics[name].largest for task, name in main.items()}
    values = {task: metrics[task][name] / ranges[task] for task, name in main.items()}
    within = {task: min(max(value, 0.0), 1.0) if isfinite(value) else 0.0 for task, value in values.items()}
    shares = {Slot("head", task): torch.tensor([value], dtype=torch.float64) for task, value in within.items()}
    sent = privatise(shares, Privacy(clip=sqrt(len(shares)), noise=noise), key, round)
    return {task: {name: float(sent[Slot("head", task)]) * ranges[task]} for task, name in main.items()}, sent
