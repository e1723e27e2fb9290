"""Compile the parts of a model in several processes at once; what they made is found again on the disk."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from fedhca2.clients.client import Client
from fedhca2.clients.step import take_step, task_loss
from fedhca2.clients.training import Learner, Training
from fedhca2.compiling import compiled
from fedhca2.data.feed import DeviceFeed, on_canvas
from fedhca2.data.plans import plan
from fedhca2.data.transforms import UNCHANGED
from fedhca2.models import ModelConfig, build_model
from fedhca2.models.fast import REST, align_attention, compile_parts, parts
from fedhca2.tasks import TASKS

ROOM = 6 << 30  # bytes of a GPU for each process, more than a batch of 8 images of 512×512 takes
INPUT = "input"
CACHE = "TORCHINDUCTOR_CACHE_DIR"

Size = tuple[int, int]
Outputs = dict[str, tuple[int, str]]  # of each task: its channels, and the type of its labels


def keep_compiled_code() -> Path:
    """Where compiled code is kept: not in a folder that is gone after a restart."""
    folder = os.environ.setdefault(CACHE, str(Path.home() / ".cache" / "fedhca2" / "compiled"))
    return Path(folder)


def precompile(model: ModelConfig, clients: Sequence[Client], device: torch.device) -> None:
    """Compile what the clients' training steps are made of; a no-op where that was done before."""
    folder = keep_compiled_code()
    training = clients[0].training
    kinds: dict[Size, Outputs] = {}
    for client in clients:
        data, tasks = client.work.train.data, client.work.train.tasks
        sample = data.load(client.work.train.indices[0], tasks)
        own = {task: (_channels(client, task), str(sample[task].dtype).removeprefix("torch.")) for task in tasks}
        kinds.setdefault(data.size, {}).update(own)
    jobs: list[dict[str, Any]] = []
    for size, outputs in kinds.items():
        job = {"model": model.model_dump(mode="json"), "training": training.model_dump(mode="json"), "size": size}
        first = dict([next(iter(outputs.items()))])
        for part in (*parts(clients[0].personal.model), INPUT):
            jobs.append({**job, "outputs": outputs if part in (REST, INPUT) else first, "part": part})
    name = f"{torch.__version__} {torch.cuda.get_device_name(device)} {json.dumps(jobs)}"
    done = folder / f"fedhca2-{sha256(name.encode()).hexdigest()[:16]}"
    if done.exists():
        return
    at_once = max(1, min(3 * len(os.sched_getaffinity(0)) // 2, torch.cuda.mem_get_info(device)[0] // ROOM))
    if not all(_run(jobs[start : start + at_once], device) for start in range(0, len(jobs), at_once)):
        return
    torch._inductor.config.compile_threads = 1  # all is on the disk: helpers would only have to be started
    folder.mkdir(parents=True, exist_ok=True)
    done.touch()


def _run(jobs: Sequence[Mapping[str, Any]], device: torch.device) -> bool:
    """One process for each job; whether all went well. What fails is compiled later, where an error is seen."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "fedhca2.clients.precompile", str(device)]
    processes = [
        subprocess.Popen([*command, json.dumps(job)], env=environment, stdout=subprocess.DEVNULL) for job in jobs
    ]
    codes = [process.wait() for process in processes]
    return not any(codes)


def _channels(client: Client, task: str) -> int:
    return TASKS[task].channels_for(client.work.train.data.labels[task])


def _blank(model: ModelConfig) -> ModelConfig:
    """The same model without first weights: code does not depend on them."""
    return model.model_copy(update={"encoder": model.encoder.model_copy(update={"weights": "none", "sha256": None})})


def _compile(device: torch.device, job: Mapping[str, Any]) -> None:
    """A training step on noise, of which one part is compiled."""
    config, training = _blank(ModelConfig(**job["model"])), Training(**job["training"])
    size = (job["size"][0], job["size"][1])
    outputs: Outputs = job["outputs"]
    channels = {task: count for task, (count, _) in outputs.items()}
    model = build_model(config, channels, size, seed=0, client="").to(device).train()
    align_attention(model)
    compile_parts(model, job["part"])
    loss = compiled(task_loss) if job["part"] == REST else task_loss
    batch = {"image": torch.randn(training.batch_size, 3, *size, device=device)}
    for task, (_, dtype) in outputs.items():
        shape = (training.batch_size, TASKS[task].label_channels, *size)
        batch[task] = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
    if job["part"] == INPUT:
        sample = {"image": torch.zeros(3, *size, dtype=torch.uint8)}
        sample |= {task: label[0].cpu() for task, label in batch.items() if task != "image"}
        raw = [(sample, UNCHANGED)] * training.batch_size
        DeviceFeed(device, compile=True).prepared(on_canvas([sample] * len(raw), size), plan(raw, size), size, 1)
        return
    take_step(model, Learner(model, training).optimizer, batch, training.precision, loss=loss)
    torch.cuda.synchronize()


if __name__ == "__main__":
    _compile(torch.device(sys.argv[1]), json.loads(sys.argv[2]))
