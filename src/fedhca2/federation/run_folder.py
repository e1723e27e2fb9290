"""A run's folder: files that any program can read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedhca2.experiment import Experiment
from fedhca2.federation.server import ServerRecord
from fedhca2.messages import Order, Reply


class RunFolder:
    """Writes a run's files, and watches the run for `metrics.jsonl`."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        if path.exists() and any(path.iterdir()):
            raise FileExistsError(f"{path}: should be a new or empty folder, found files in it")
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.bytes_up = self.bytes_down = 0
        (path / "config.yaml").write_text(experiment.to_yaml(), "utf-8")
        self._events = (path / "metrics.jsonl").open("a", encoding="utf-8")

    def log(self, event: str, **values: Any) -> None:
        """Append one event."""
        self._events.write(json.dumps({"event": event, **values}) + "\n")
        self._events.flush()

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Batches are not kept."""

    def replied(self, order: Order, reply: Reply) -> None:
        """Keep what a client did: its scores belong to the model after `round` rounds, its losses to the next one."""
        up, down = reply.nbytes, order.nbytes
        self.bytes_up, self.bytes_down = self.bytes_up + up, self.bytes_down + down
        who = {"round": order.round, "client": reply.client}
        for task, scores in reply.metrics.items():
            for metric, value in scores.items():
                self.log("metric", **who, task=task, metric=metric, value=value)
        for task, value in reply.losses.items():
            self.log("loss", **who, task=task, metric="loss", value=value)
        self.log("client", **who, seconds=round(reply.seconds, 4), bytes_up=up, bytes_down=down)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Keep what the server did."""
        for aggregation in record.aggregations:
            products = aggregation.products.tolist() if aggregation.products is not None else None
            blends = [blend.weights.tolist() for blend in aggregation.mixing.blends]
            self.log(
                "aggregation",
                round=round,
                part=aggregation.part,
                members=aggregation.members,
                products=products,
                mixing=blends,
            )
        self.log("weights", round=round, weights=record.weights)
        self.log("round", round=round, seconds=seconds, refused=record.refused)

    def save_model(self, client: str, model: torch.nn.Module) -> None:
        """Keep a client's trained model."""
        (self.path / "models").mkdir(exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        save_file(tensors, self.path / "models" / f"{client}.safetensors")

    def save_samples(self, client: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Keep a few images of a client with labels and predictions."""
        (self.path / "samples").mkdir(exist_ok=True)
        np.savez_compressed(self.path / "samples" / f"{client}.npz", allow_pickle=False, **arrays)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result; a folder that has one belongs to a run that came to its end."""
        self._events.close()
        (self.path / "result.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
