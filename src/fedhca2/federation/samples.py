"""A few validation images of a client with labels and predictions, to look at."""

from typing import Any

import numpy as np
import torch

from fedhca2.clients import Client, at_work
from fedhca2.data.batches import Batches
from fedhca2.tasks import TASKS

COUNT = 4

Arrays = dict[str, np.ndarray[Any, Any]]


def sample_indices(client: Client) -> list[int]:
    """Images spread evenly over the client's validation split; a single one if sizes differ, as arrays must stack."""
    indices, data = client.data.val.indices, client.data.val.data
    chosen = [indices[i * len(indices) // COUNT] for i in range(min(COUNT, len(indices)))]
    sizes = {data.load(index, ())["image"].shape for index in chosen}
    return chosen if len(sizes) == 1 else chosen[:1]


def sample_labels(client: Client) -> Arrays:
    """Images and labels: `image`, `label.TASK`."""
    data, tasks = client.data.val.data, client.data.val.tasks
    samples = [data.load(index, tasks) for index in sample_indices(client)]
    keys = {"image": "image"} | {task: f"label.{task}" for task in tasks}
    return {key: torch.stack([sample[name] for sample in samples]).numpy() for name, key in keys.items()}


@torch.inference_mode()
def sample_predictions(client: Client, when: str) -> Arrays:
    """What the client's model makes of these images now, without the padding: `WHEN.TASK`."""
    val = client.data.val
    indices = sample_indices(client)
    batch = next(Batches(val.data, indices, val.tasks, batch_size=COUNT).evaluation())
    with at_work(client, client.device_slot):
        outputs = client.personal.model.eval()(batch["image"].to(client.where))
    height, width = val.data.load(indices[0], ())["image"].shape[-2:]
    top, left = ((padded - own) // 2 for padded, own in zip(val.data.size, (height, width), strict=True))
    predictions = {task: TASKS[task].predict(output).cpu() for task, output in outputs.items()}
    return {
        f"{when}.{task}": prediction[..., top : top + height, left : left + width].numpy()
        for task, prediction in predictions.items()
    }
