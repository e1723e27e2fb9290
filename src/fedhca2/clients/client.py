"""A client: its own data, tasks and model. It carries out orders in any engine."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count, product
from math import ceil, inf, isfinite, nan
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from fedhca2.clients.device import DeviceSlot, on_device
from fedhca2.clients.evaluation import BestModel, evaluate, mean_loss, recalibrate, trivial_scores
from fedhca2.clients.exchange import ALIKE, DeclinedError, Exchange, divergence, noise_reach, trained_reach
from fedhca2.clients.privacy import Privacy
from fedhca2.clients.state_file import ClientState
from fedhca2.clients.training import Learner, LocalTerms, Losses, Training, sum_of
from fedhca2.data.batches import Batch, Batches, prefetch
from fedhca2.messages import BatchNorm, Effect, Order, Profile, Reply
from fedhca2.models.layers import draw_keep
from fedhca2.models.multitask import MultiTaskModel, slot_prefix
from fedhca2.objectives import Epoch, Objective
from fedhca2.params import Slot, copy_packed, unflatten
from fedhca2.seeds import derive
from fedhca2.tasks import LabelSpace
from fedhca2.tasks.task import TRIVIAL

BatchWatch = Callable[[str, int, int, Tensor], None]  # client, batches done, batches in total, loss of the last one
Pass = tuple[Epoch, Learner, Iterator[Batch]]  # an epoch of one model


@dataclass(frozen=True)
class LocalData:
    """A client's images, and how often it uses them."""

    train: Batches
    val: Batches
    rounds: int
    steps: int  # that a model takes in a round
    seed: int
    metrics: Mapping[str, str] = field(default_factory=dict)  # metrics that replace the tasks' own
    test: Batches | None = None  # the images of the final scores, if not those of validation
    selects: bool = False  # whether the model that is best on the validation images counts, not the last one
    some_val: Batches | None = None  # the validation images that losses are measured on, if not all
    stretch: Fraction = Fraction(1)  # the epochs that count as one in the schedule

    @property
    def epochs(self) -> Fraction:
        """Epochs of the whole run."""
        return Fraction(self.rounds * self.steps, len(self.train))

    @property
    def images_for_losses(self) -> Batches:
        """The validation images that losses are measured on."""
        return self.val if self.some_val is None else self.some_val


class Client:
    """Trains, evaluates, and takes the server's rows; data never leave it."""

    def __init__(
        self,
        profile: Profile,
        model: MultiTaskModel,
        data: LocalData,
        training: Training,
        *,
        objective: Objective,
        batch_norm: BatchNorm,
        privacy: Privacy,
        others_noise: float,
        first: Mapping[Slot, float],
        device_slot: DeviceSlot,
    ) -> None:
        """:param others_noise: the standard deviation of the noise that others may add to each value.
        :param first: the lengths of the rows of its untrained model.
        """
        self.profile, self.name, self.layouts = profile, profile.client, profile.layouts
        self.data, self.training, self.objective = data, training, objective
        self.batch_norm, self.privacy, self.device_slot = batch_norm, privacy, device_slot
        noise = max(others_noise, privacy.deviation)

        def longest(slot: Slot, round: int) -> float:
            # Others have different images and epochs, so they may have moved ten times as far. Running statistics have
            # no limit, since they follow the data.
            if slot.part.endswith("_norms"):
                return inf
            numel, steps = profile.layouts[slot].numel, range((round + 1) * data.steps)
            trained = trained_reach(training, len(data.train), steps, data.rounds * data.steps, slot.part, numel)
            return ALIKE * (first[slot] + trained + noise_reach(noise, round + 1, numel))

        self.exchange = Exchange(model, privacy, longest, objective)
        self.best = BestModel()
        self.personal = Learner(model, training)
        self.shared = Learner(deepcopy(model), training) if self.objective.own_copy else self.personal

    @property
    def steps(self) -> int:
        """Steps that each of its models takes in a round."""
        return sum(len(epoch.part) for epoch in self.epochs(0))

    def epochs(self, round: int) -> list[Epoch]:
        """The epochs of a round, or the parts of them that belong to it."""
        return self.objective.epochs(round, self.data.steps, len(self.data.train))

    @property
    def nbytes(self) -> int:
        """Bytes of its state."""
        return sum(tensor.nbytes for tensor in self.current.tensors.values())

    @property
    def where(self) -> torch.device:
        """The device that its tensors are on."""
        return next(self.personal.model.parameters()).device

    def rows(self, slots: Iterable[Slot]) -> dict[Slot, Tensor]:
        """The values of slots in the shared model."""
        return self.exchange.rows(self.shared.model, slots)

    def perform(self, order: Order, watch: BatchWatch = lambda *_: None) -> Reply:
        """Take the rows, then evaluate, then train, then reply.

        A client declines rows that cannot come from training, and continues from its own. If training ends in
        non-finite values, it returns to its state before it took any rows. It reports both.
        """
        with on_device(self):
            began = perf_counter()
            passes = self._passes(order.round) if order.train else iter(())
            fine_tune = order.finish and self.objective.final_epochs > 0
            good = self.state(self.where) if order.train or fine_tune else None
            declined, effect = self._take(order)
            failed = self._fault(self._fine_tune(watch), good) if good and fine_tune else ""
            metrics = self._score(order) if order.evaluate else {}
            reply = Reply(self.name, order.round, metrics=metrics, effect=effect, failed=failed, declined=declined)
            if good and order.train:
                self.exchange.begin_training(self.shared.model, order)
                losses = self._train(passes, watch)
                if failed := self._fault(losses, good):
                    reply = replace(reply, failed=failed)
                else:
                    losses_to_send = {} if self.privacy.noise else losses  # noise does not cover losses
                    rates = [self.rate(epoch) for epoch in self.epochs(order.round) for _ in epoch.part]
                    share = self.training.rate_share
                    rows, agreement = self.exchange.outgoing(
                        self.shared.model, order, self.steps, lambda part: sum(rates) / len(rates) * share(part)
                    )
                    reply = replace(reply, rows=rows, agreement=agreement, losses=losses_to_send, steps=self.steps)
            return replace(reply, seconds=perf_counter() - began)

    def _take(self, order: Order) -> tuple[str, Effect | None]:
        """Take the rows; returns the reason if they were not taken, and their effect if the order asks for it.

        Rows that only attract have no effect yet, and noise does not cover losses.
        """
        began, before = perf_counter(), nan
        if order.compare and self.objective.replaces and not self.privacy.noise:
            before = mean_loss(self)
        seconds = perf_counter() - began
        try:
            self.exchange.receive(self.shared.model, order)
        except DeclinedError as error:
            return f"its rows were not taken: {error}", None
        if self.batch_norm == "recalibrate" and order.deliveries:
            recalibrate(self.shared.model, self.batches(order.round * self.data.steps // len(self.data.train)))
        if not isfinite(before):
            return "", None
        began = perf_counter()
        effect = Effect(before, mean_loss(self), seconds + perf_counter() - began)
        return "", effect if isfinite(effect.after) else None

    def _score(self, order: Order) -> dict[str, dict[str, float]]:
        """Score the model on the validation images; at the end, the one that counts on the test images."""
        test = self.data.test if order.finish else None
        metrics = self.evaluate(trivial=order.finish) if test is None or self.data.selects else {}
        if self.data.selects:
            model = self.personal.model
            self.best.offer(
                model, metrics, model.tasks.metrics(model.decoders, self.data.val.data.labels, self.data.metrics)
            )
            if test is not None:
                self.best.load_into(model)
        return metrics if test is None else self.evaluate_on(test, test.data.labels, trivial=True)

    def evaluate(self, *, trivial: bool = False) -> dict[str, dict[str, float]]:
        """Score the model on the validation split, and one answer for all images if `trivial`."""
        return self.evaluate_on(self.data.val, self.data.val.data.labels, trivial=trivial)

    def evaluate_on(
        self, images: Batches, labels: Mapping[str, LabelSpace], *, trivial: bool = False
    ) -> dict[str, dict[str, float]]:
        """Score the model on images with these label formats, and one answer for all images if `trivial`."""
        model, slot = self.personal.model, self.device_slot
        metrics = model.tasks.metrics(model.decoders, labels, self.data.metrics)
        with on_device(self):
            batches = slot.until_stopped(images.evaluation(slot.feed))
            scores = evaluate(model, batches, metrics, self.training.precision, slot.captures)
            for task, score in trivial_scores(self, images, labels).items() if trivial else ():
                scores[task][TRIVIAL] = score
            return scores

    def batches(self, epoch: int, part: range | None = None) -> Iterator[Batch]:
        """The batches of one epoch, or part of them, counted from the first round, with all draws for their steps."""
        seed, training, slot = self.data.seed, self.training, self.device_slot
        batches = self.data.train.training(
            seed=seed,
            client=self.name,
            epoch=epoch,
            augment=training.augment,
            scales=training.scales,
            feed=slot.feed,
            part=part,
        )
        drops = self.personal.model.drops
        if not drops:
            return slot.until_stopped(batches)
        dice = np.random.default_rng(derive(seed, "drop_path", self.name, epoch))
        keep = draw_keep(drops, len(self.data.train), self.data.train.batch_size, dice)
        keep = (keep if part is None else keep[part.start : part.stop]).to(slot.device)
        return slot.until_stopped(replace(batch, keep=own) for batch, own in zip(batches, keep, strict=True))

    def move(self, moved: Callable[[Tensor], Tensor]) -> None:
        """Move everything it holds to another device."""
        for learner in {self.personal, self.shared}:
            learner.move(moved)
        self.exchange.move(moved)

    @property
    def current(self) -> ClientState:
        """Everything the next round depends on, except data and settings: its own tensors, until it works again."""
        tensors = self.personal.tensors("personal")
        if self.shared is not self.personal:
            tensors |= self.shared.tensors("shared")
        tensors |= self.best.tensors | self.exchange.tensors()
        return ClientState(tensors, {"client": self.name, **self.best.values, **self.exchange.values()})

    def state(self, device: torch.device | None = None) -> ClientState:
        """A copy of its current state on a device, by default the CPU."""
        state = self.current
        copies = copy_packed(list(state.tensors.values()), lambda packed: packed.to(device or "cpu"))
        return ClientState(dict(zip(state.tensors, copies, strict=True)), state.values)

    def drop_gradients(self) -> None:
        """Release what it only needs while it works."""
        for learner in {self.personal, self.shared}:
            learner.optimizer.zero_grad()

    def restore(self, state: ClientState) -> None:
        """Restore a state of this client; raises ValueError if it belongs to another or does not fit."""
        if state.values.get("client") != self.name:
            raise ValueError(f"expected a state of client {self.name!r}, got one of {state.values.get('client')!r}")
        self.personal.restore("personal", state.tensors)
        if self.shared is not self.personal:
            self.shared.restore("shared", state.tensors)
        self.best = BestModel.of(state)
        self.exchange.restore(state.tensors, state.values, self.where)

    def _fault(self, losses: Mapping[str, float], good: ClientState) -> str:
        """Describe what went wrong in training and restore the good state; empty if nothing did."""
        learners = {self.shared, self.personal}
        fault = divergence(losses, [parameter for learner in learners for parameter in learner.model.parameters()])
        if fault:
            self.restore(good)
        return fault

    def _passes(self, round: int) -> Iterator[Pass]:
        """A round's epochs, each of the shared copy, if there is one, and of the personal model.

        Reading of the first one's batches starts now, and of each other's one turn early.
        """
        passes = product(self.epochs(round), dict.fromkeys((self.shared, self.personal)))
        return prefetch((epoch, learner, self.batches(epoch.draw, epoch.part)) for epoch, learner in passes)

    def _train(self, passes: Iterator[Pass], watch: BatchWatch) -> dict[str, float]:
        """Train the epochs of one round."""
        pulled = self._by_parameter(self.exchange.anchors(self.shared.model) if self.objective.pull else {})
        drifts = self._by_parameter(self.exchange.drifts())
        learners = {self.shared, self.personal}
        steps = _count(self.name, self.steps * len(learners), watch)
        losses: dict[str, float] = {}
        for epoch, learner, batches in passes:
            shared, own = LocalTerms(epoch.frozen), LocalTerms(epoch.frozen, self.objective.pull, pulled, drifts)
            terms = own if learner is self.personal else shared
            losses = learner.train_epoch(
                batches, self.rate(epoch), terms, watch=steps, captures=self.device_slot.captures
            )
        for learner in learners:
            learner.end_round()
        return losses

    def gradients(self, round: int, parts: int, watch: BatchWatch) -> Iterator[tuple[float, Losses]]:
        """Add the gradients of a round of the personal model; yields the rate and the losses of each part of a batch.

        Somebody else takes the steps.
        """
        seen = _count(self.name, self.steps, watch)
        for epoch, learner, batches in self._passes(round):
            for batch in batches:
                for part in batch.parts(parts):
                    losses = learner.add_gradients(part, self.device_slot.captures)
                    share = len(part.image) / len(batch.image)
                    yield self.rate(epoch), {task: loss * share for task, loss in losses.items()}
                seen(sum_of(losses))

    def rate(self, epoch: Epoch) -> float:
        """The schedule's learning rate in one of the run's epochs."""
        number, total = epoch.number // self.data.stretch, self.data.epochs / self.data.stretch
        return self.training.schedule.rate(number, float(total), self.training.learning_rate)

    def _fine_tune(self, watch: BatchWatch) -> dict[str, float]:
        """Train the method's last epochs, of the whole model, with rates from the full learning rate down."""
        first, epochs = ceil(self.data.epochs), self.objective.final_epochs
        schedule = self.training.schedule.model_copy(update={"warmup_epochs": 0, "lag": False})
        steps = _count(self.name, len(self.data.train) * epochs, watch)
        losses: dict[str, float] = {}
        for epoch in range(epochs):
            rate = schedule.rate(epoch, epochs, self.training.learning_rate)
            batches = self.batches(first + epoch)
            losses = self.personal.train_epoch(batches, rate, watch=steps, captures=self.device_slot.captures)
        self.personal.end_round()
        return losses

    def _by_parameter(self, rows: Mapping[Slot, Tensor]) -> list[tuple[str, Tensor]]:
        """Rows of slots as pieces for their parameters, by name."""
        tensors = {slot: unflatten(row, self.layouts[slot]) for slot, row in rows.items()}
        return [(slot_prefix(slot) + name, piece) for slot, pieces in tensors.items() for name, piece in pieces.items()]


def _count(client: str, total: int, watch: BatchWatch) -> Callable[[Tensor], None]:
    """Tell a watcher about every batch with its number, from 1."""
    numbers = count(1)
    return lambda loss: watch(client, next(numbers), total, loss)
