"""A run's folder: files that any program can read."""

import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedhca2.clients.state_file import write_whole
from fedhca2.experiment import ConfigError, Experiment
from fedhca2.federation import lock
from fedhca2.federation.server import ServerRecord
from fedhca2.federation.strict_json import to_json
from fedhca2.messages import Order, Profile, Reply


class RunFolder:
    """Writes a run's files, and watches the run for `metrics.jsonl`."""

    def __init__(
        self, path: Path, experiment: Experiment, *, resume: bool = False, beside: Mapping[str, Any] | None = None
    ) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._lock = lock.lock_folder(path)
        if not resume and not _is_fresh(path, beside or {}):
            raise FileExistsError(f"{path}: should be a new or empty folder, found files in it")
        self.path = path
        self.bytes_up = self.bytes_down = 0
        self.updates: Counter[str] = Counter()  # how many each client has sent
        for name, values in (beside or {}).items():
            self.save_json(name, values)
        write_whole(path / "config.yaml", experiment.to_yaml().encode())  # the last: a folder that has it is whole
        (path / "result.json").unlink(missing_ok=True)
        self._events = (path / "metrics.jsonl").open("a", encoding="utf-8")

    def position(self) -> dict[str, Any]:
        """How far the events have come, all of them on the disk."""
        self._events.flush()
        os.fsync(self._events.fileno())
        length = os.fstat(self._events.fileno()).st_size
        counts = {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down, "updates": dict(self.updates)}
        return {"events": length, **counts}

    def rewind(self, position: Mapping[str, Any]) -> None:
        """Forget the events after a position: those rounds are run again."""
        length = (self.path / "metrics.jsonl").stat().st_size
        if length < position["events"]:
            raise ConfigError(
                [f"{self.path}/metrics.jsonl: should have {position['events']} bytes or more, found {length}"]
            )
        self._events.truncate(position["events"])
        self._events.seek(0, os.SEEK_END)
        self.bytes_up, self.bytes_down = position["bytes_up"], position["bytes_down"]
        self.updates = Counter(position["updates"])

    def close(self) -> None:
        """Let go of the folder."""
        self._events.close()
        self._lock.close()

    def log(self, event: str, **values: Any) -> None:
        """Append one event."""
        try:
            self._events.write(to_json({"event": event, **values}) + "\n")
            self._events.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / "metrics.jsonl")) from None

    def introduced(self, profiles: Iterable[Profile]) -> None:
        """Keep who takes part, and how the rows of decoders are laid out."""
        for profile in profiles:
            self.log(
                "profile",
                client=profile.client,
                dataset=profile.dataset,
                tasks=profile.tasks,
                samples=profile.samples,
                parameters={str(slot): layout.numel for slot, layout in profile.layouts.items()},
                decoders={
                    slot.task: layout.names for slot, layout in profile.layouts.items() if slot.part == "decoder"
                },
            )

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Batches are not kept."""

    def replied(self, order: Order, reply: Reply) -> None:
        """Keep what a client did: its scores belong to the model after `round` rounds, its losses to the next one."""
        up, down = reply.nbytes, order.nbytes
        self.bytes_up, self.bytes_down = self.bytes_up + up, self.bytes_down + down
        self.updates[reply.client] += bool(reply.rows)
        who = {"round": order.round, "client": reply.client}
        for task, scores in reply.metrics.items():
            for metric, value in scores.items():
                self.log("metric", **who, task=task, metric=metric, value=value)
        for task, value in reply.losses.items():
            self.log("loss", **who, task=task, metric="loss", value=value)
        if reply.failed and order.finish:  # in other rounds the server's record says so
            self.log("failed", **who, why=reply.failed)
        self.log("client", **who, seconds=round(reply.seconds, 4), bytes_up=up, bytes_down=down)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Keep what the server did."""
        for aggregation in record.aggregations:
            products = aggregation.products.tolist() if aggregation.products is not None else None
            blends, votes = [blend.weights.tolist() for blend in aggregation.mixing.blends], aggregation.mixing.votes
            self.log(
                "aggregation",
                round=round,
                part=aggregation.part,
                members=aggregation.members,
                measure=aggregation.measure,
                products=products,
                mixing=blends,
                gets=[blend.gets for blend in aggregation.mixing.blends],
                votes=votes.tolist() if votes is not None else None,
            )
        self.log("weights", round=round, weights=record.weights)
        self.log("round", round=round, seconds=seconds, refused=record.refused)

    def save_json(self, name: str, values: Any) -> None:
        """Keep plain data."""
        write_whole(self.path / name, (to_json(values, indent=2, ensure_ascii=False) + "\n").encode())

    def save_model(self, client: str, model: torch.nn.Module) -> None:
        """Keep a client's trained model."""
        (self.path / "models").mkdir(exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_whole(self.path / "models" / f"{client}.safetensors", save(tensors))

    def save_samples(self, client: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Keep a few images of a client with labels and predictions."""
        (self.path / "samples").mkdir(exist_ok=True)
        packed = io.BytesIO()
        np.savez_compressed(packed, allow_pickle=False, **arrays)
        write_whole(self.path / "samples" / f"{client}.npz", packed.getvalue())

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result; a folder that has one belongs to a run that came to its end."""
        self.position()
        self.save_json("result.json", result)


def _is_fresh(path: Path, beside: Iterable[str]) -> bool:
    """Whether a folder has no files but those of a run that was killed before its config was there."""
    early = {*beside, *(f".{name}.new" for name in (*beside, "config.yaml"))}
    return {entry.name for entry in path.iterdir()} <= {lock.NAME, *early}
