"""Evaluating a client's model: scores of a whole split, losses, a few sample predictions, running statistics."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedhca2.clients.device import CapturedForward, Captures, on_device
from fedhca2.clients.state_file import ClientState
from fedhca2.clients.training import Training, autocast, loss_of, total_loss
from fedhca2.data.batches import Batch, Batches
from fedhca2.data.transforms import own_size, place_image
from fedhca2.metrics import Metric, rise
from fedhca2.models.multitask import MultiTaskModel, Scaled
from fedhca2.params import ENCODER, assign, copy_packed, copy_values, flatten
from fedhca2.tasks import LabelSpace

if TYPE_CHECKING:
    from fedhca2.clients.client import BatchWatch, Client

SAMPLES = 8  # sample images per client

Arrays = dict[str, np.ndarray[Any, Any]]


@torch.inference_mode()
def evaluate(
    model: MultiTaskModel,
    batches: Iterable[Batch],
    metrics: Mapping[str, Metric],
    precision: str,
    captures: Captures | None = None,
) -> dict[str, dict[str, float]]:
    """Every score of every task: {task: {metric: value}}, the headline metric first. Batches are on the model's device.

    `metrics` are empty accumulators, one for each task.
    """
    model.eval()
    captured: CapturedForward | None = None
    for batch in batches:
        if captures:
            captured = captured or captures.forward(model, batch.image, precision)
        if captured and captured.image.shape == batch.image.shape:  # all batches except the last
            predictions = captured(batch.image)
        else:
            with autocast(batch.image.device, precision):
                outputs = model(batch.image).items()
                predictions = {task: model.tasks[task].predict(output) for task, output in outputs}
        for task, predicted in predictions.items():
            for prediction, label in batch.pairs(model.tasks[task], predicted):
                metrics[task].update(prediction, label)
    return {task: metric.compute() for task, metric in metrics.items()}


@dataclass
class BestModel:
    """The values of the model with the best scores so far, on the CPU; part of a client's state."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)  # each task's score in the first evaluation
    rise: float = -inf  # how much better the best scores are than these, as a mean over tasks

    @classmethod
    def of(cls, state: ClientState) -> "BestModel":
        """What a client's state has of it."""
        tensors = {name: tensor.cpu() for name, tensor in state.tensors.items() if name.startswith("best/")}
        return cls(tensors, **state.values.get("best", {}))

    @property
    def values(self) -> dict[str, Any]:
        """The values of a client's state; none before the first evaluation."""
        return {"best": {"first": self.first, "rise": self.rise}} if self.tensors else {}

    def offer(
        self, model: MultiTaskModel, scores: Mapping[str, Mapping[str, float]], metrics: Mapping[str, Metric]
    ) -> None:
        """Keep the model's values if its scores are better than the best ones, by these metrics."""
        main = {task: scores[task][metric.name] for task, metric in metrics.items()}
        self.first = self.first or main
        rises = [rise(main[task], first, metrics[task].higher_is_better) for task, first in self.first.items()]
        if (mean := sum(rises) / len(rises)) > self.rise:
            copies = copy_packed(list(model.state_dict().values()), lambda packed: packed.to("cpu"))
            names = [f"best/{name}" for name in model.state_dict()]
            self.rise, self.tensors = mean, dict(zip(names, copies, strict=True))

    def load_into(self, model: MultiTaskModel) -> None:
        """Give a model the best values; it keeps its own if there are none."""
        own = model.state_dict(keep_vars=True)
        if self.tensors:
            copy_values(list(own.values()), [self.tensors[f"best/{name}"].to(own[name].device) for name in own])


@torch.inference_mode()
def summed_loss(model: MultiTaskModel, batch: Batch, training: Training) -> Tensor:
    """The loss that a model trains on, times the number of images, in evaluation mode."""
    with autocast(batch.image.device, training.precision):
        losses = {
            task: loss_of(model.tasks[task], model.heads[task], output, batch.labels[task])
            for task, output in model(batch.image).items()
        }
    return len(batch.image) * total_loss(model, losses, training.loss_weights).double()


@torch.inference_mode()
def trivial_scores(client: "Client", images: Batches, labels: Mapping[str, LabelSpace]) -> dict[str, float]:
    """What one answer for all images scores in each task: the largest class of the training labels, or their mean.

    A task without any training label, or whose metric says nothing about plain maps, has none.
    """
    answers, task_set = trivial_answers(client.data.train), images.task_set
    metrics = task_set.metrics(answers, labels, client.data.metrics)
    answers = {task: answer for task, answer in answers.items() if metrics[task].for_plain_maps}
    for batch in client.device_slot.until_stopped(images.evaluation(client.device_slot.feed)):
        for task, answer in answers.items():
            plain = answer.to(batch.image.device).expand(len(batch.image), -1)
            if task_set[task].output == "map":
                plain = task_set[task].resized(plain[:, :, None, None], (batch.image.shape[-2], batch.image.shape[-1]))
            for prediction, label in batch.pairs(task_set[task], plain):
                metrics[task].update(prediction, label)
    return {task: metrics[task].compute()[metrics[task].name] for task in answers}


def trivial_answers(train: Batches) -> dict[str, Tensor]:
    """By task, the largest class of the training labels [1], or their mean [C]."""
    classes = {task: Counter[int]() for task in train.tasks if train.task_set[task].grouped_by == "class"}
    sums: dict[str, Tensor] = {}
    for task, label in _training_labels(train):
        is_known = train.task_set[task].known(label)
        if task in classes:
            values, counts = np.unique(label[is_known].numpy(), return_counts=True)
            classes[task].update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            continue
        pairs = torch.stack((torch.where(is_known, label, 0).double(), is_known.double())).transpose(1, 2)
        sums[task] = sums.get(task, 0) + pairs.flatten(2).sum(dim=-1)
    means = {task: (total / count).float() for task, (total, count) in sums.items() if bool(count.all())}
    return means | {task: torch.tensor([values.most_common(1)[0][0]]) for task, values in classes.items() if values}


def _training_labels(train: Batches, most: int = 1_000) -> Iterator[tuple[str, Tensor]]:
    """Labels [B, C, …] of a task, several times for each: of all arrays, or of at most `most` images."""
    if train.are_arrays:
        for batch in train.in_order():
            yield from batch.labels.items()
        return
    for index in train.indices[:: -(-len(train.indices) // most)]:
        sample = train.data.load(index, train.tasks)
        yield from ((task, sample[task][None]) for task in train.tasks)


@torch.no_grad()
def standardise(model: MultiTaskModel, train: Batches) -> None:
    """Give the heads that learn from standardised values the mean and deviation of the training labels."""
    heads = {task: head for task, head in model.heads.items() if isinstance(head, Scaled)}
    values: dict[str, list[Tensor]] = {task: [] for task in heads}
    for task, label in _training_labels(train) if heads else ():
        if task in heads:
            values[task].append(label)
    for task, head in heads.items():
        labels = np.ma.masked_invalid(torch.cat(values[task]).double().numpy())
        head.mean.copy_(torch.from_numpy(labels.mean(axis=0).filled(0.0)))
        deviation = labels.std(axis=0).filled(1.0)
        head.deviation.copy_(torch.from_numpy(np.where(deviation > 0, deviation, 1.0)))


def mean_loss(client: "Client") -> float:
    """The loss of the model that the server's rows go to, as the mean over validation images."""
    images, slot, model = client.data.images_for_losses, client.device_slot, client.shared.model.eval()
    losses = [summed_loss(model, batch, client.training) for batch in slot.until_stopped(images.in_order(slot.feed))]
    return float(sum(losses)) / len(images.indices)


def look_ahead(
    client: "Client", updates: Mapping[str, Tensor], watch: "BatchWatch | None" = None
) -> tuple[float, dict[str, float]]:
    """A client's validation loss, and by name the loss with each of these updates added to its encoder.

    Every batch is read once, and tried with one encoder after the other. The encoder is left as it was.
    """
    images, slot = client.data.images_for_losses, client.device_slot
    model, layout = client.shared.model, client.layouts[ENCODER]
    sums: dict[str | None, Tensor] = {}  # None: with its own encoder
    with on_device(client):
        tensors = model.slots()[ENCODER]
        own = flatten(tensors, layout)
        try:
            for number, batch in enumerate(slot.until_stopped(images.in_order(slot.feed)), 1):
                for name, update in ((None, None), *updates.items()):
                    assign(tensors, own if update is None else own + update.to(own.device), layout)
                    model.eval()  # again: backbones keep what they compute from their weights until a mode is set
                    loss = summed_loss(model, batch, client.training)
                    sums[name] = sums[name] + loss if name in sums else loss
                if watch:
                    watch(client.name, number, -(-len(images.indices) // images.batch_size), loss / len(batch.image))
        finally:
            assign(tensors, own, layout)
    own_loss = float(sums.pop(None)) / len(images.indices)
    return own_loss, {name: float(total) / len(images.indices) for name, total in sums.items() if name}


def sample_indices(client: "Client") -> list[int]:
    """Images spread evenly over the client's validation split; only one if sizes differ, since arrays must stack."""
    indices, data = client.data.val.indices, client.data.val.data
    count = min(SAMPLES, len(indices))
    chosen = [indices[i * len(indices) // count] for i in range(count)]
    sizes = {data.load(index, ())["image"].shape for index in chosen}
    return chosen if len(sizes) == 1 else chosen[:1]


def sample_labels(client: "Client") -> Arrays:
    """The sample images and labels: `image`, `label.TASK`, and the names of classes in `names.TASK`."""
    data, tasks = client.data.val.data, client.data.val.tasks
    if client.data.val.are_arrays:
        return {}  # nothing to draw
    samples = [data.load(index, tasks) for index in sample_indices(client)]
    keys = {"image": "image"} | {task: f"label.{task}" for task in tasks}
    arrays = {key: torch.stack([sample[name] for sample in samples]).numpy() for name, key in keys.items()}
    return arrays | {f"names.{task}": np.array(data.labels[task].names) for task in tasks if data.labels[task].names}


@torch.inference_mode()
def sample_predictions(client: "Client", when: str) -> Arrays:
    """The model's current predictions for the sample images, without padding: `WHEN.TASK`."""
    val = client.data.val
    if val.are_arrays:
        return {}
    indices = sample_indices(client)
    batch = next(
        Batches(val.data, indices, val.tasks, batch_size=SAMPLES, resize=val.resize, task_set=val.task_set).evaluation()
    )
    with on_device(client):
        model = client.personal.model.eval()
        outputs = model(batch.image.to(client.where))
    own = place_image(own_size(val.data.load(indices[0], ())), val.data.size)  # all have one size
    predictions = {task: model.tasks[task].predict(output).cpu() for task, output in outputs.items()}
    restored = {task: own.restore(model.tasks[task], prediction) for task, prediction in predictions.items()}
    # Numbers of classes take two bytes instead of eight: they stay in memory until the run ends.
    small = {task: each if each.is_floating_point() else each.to(torch.int16) for task, each in restored.items()}
    return {f"{when}.{task}": prediction.numpy() for task, prediction in small.items()}


@torch.no_grad()
def recalibrate(model: MultiTaskModel, batches: Iterable[Batch]) -> None:
    """Measure the running statistics of BatchNorm layers again, as plain averages, after parameters have changed.

    Those of a frozen backbone stay as they are.
    """
    fixed = model.fixed
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and f"{name}.running_mean" not in fixed
    ]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    model.eval()  # no stochastic depth
    for layer in layers:
        layer.train()
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
    for batch in batches:
        model(batch.image)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
