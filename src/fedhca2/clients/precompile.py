"""Compiling the parts of a model in parallel processes, which leave the compiled code on disk."""

import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from hashlib import sha256
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhca2.clients.client import Client
from fedhca2.clients.device import CapturedForward, Captures
from fedhca2.clients.training import Learner, Training, set_mode, take_step, task_loss
from fedhca2.compiling import compiled, without_collecting
from fedhca2.cores import usable_cores
from fedhca2.data.augmentation import Choices, InputFormat, pack
from fedhca2.data.batches import Batch, DeviceFeed
from fedhca2.data.dataset import Sample
from fedhca2.data.transforms import collate
from fedhca2.imports import same_modules
from fedhca2.models import ModelConfig, build_model
from fedhca2.models.fast import REST, compile_parts, parts, use_fast_layers
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.tasks.built_in import DeclaredTask, make_task_set
from fedhca2.version import __version__

INPUT, LOSS, ALL = "input", "loss", "all"  # jobs that are no part of a model
COMPILER = "torch._inductor.compile_fx"
CACHE = "TORCHINDUCTOR_CACHE_DIR"

# Each process does one thing at a time, and their parent must not touch the GPU.
SERIAL = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

Size = tuple[int, int]
Job = Mapping[str, Any]
Outputs = dict[str, tuple[int, str, int]]  # by task: its channels, and the type and channels of its labels


def precompile(models: Mapping[str, ModelConfig], clients: Sequence[Client], device: torch.device) -> None:
    """Compile the parts of the clients' training steps; does nothing if that was done before.

    Compiled code is kept in a folder that survives a restart. `models` are the clients' models by name.
    """
    if not hasattr(os, "fork"):
        return  # steps are compiled when they are first taken
    folder = Path(os.environ.setdefault(CACHE, str(Path.home() / ".cache" / "fedhca2" / "compiled")))
    kinds: dict[tuple[str, Size], tuple[Client, Outputs]] = {}
    for client in clients:
        if client.data.train.are_arrays:
            continue  # small enough to be compiled when they are first taken
        data, tasks = client.data.train.data, client.data.train.tasks
        sample, task_set = data.load(client.data.train.indices[0], tasks), client.personal.model.tasks
        own = {
            task: (
                task_set[task].channels_for(data.labels[task]),
                str(sample[task].dtype).removeprefix("torch."),
                len(sample[task]),
            )
            for task in tasks
        }
        kinds.setdefault((models[client.name].model_dump_json(), data.size), (client, {}))[1].update(own)
    by_kind = [_jobs(client, models[client.name], size, outputs) for (_, size), (client, outputs) in kinds.items()]
    jobs = [job for own in by_kind for job in own]
    done = folder / mark_of(jobs, torch.cuda.get_device_name(device))
    if not done.exists():
        if not _compile_in_processes(device, by_kind):
            return  # failed parts are compiled later, where errors are visible
        folder.mkdir(parents=True, exist_ok=True)
        done.touch()
    importlib.import_module(COMPILER)
    torch._inductor.config.compile_threads = 1  # all code is on disk, so helper processes would be useless


def _compile_in_processes(device: torch.device, by_kind: Sequence[Sequence[Job]]) -> bool:
    """Compile the jobs of all kinds of clients, one kind after another; returns whether all of it worked.

    As soon as a kind is compiled, its step is traced here, while the processes compile the others, if the GPU has room.
    """
    process_bytes = 6 << 30  # of GPU memory, more than a batch of 8 images of 512×512 takes
    cores, rooms = len(usable_cores()), torch.cuda.mem_get_info(device)[0] // process_bytes
    traces = len(by_kind) > 1 and rooms >= cores + 2  # for this process, whose batch is one of all tasks
    at_once = max(1, min(cores - 1 if traces else cores, rooms))
    command = [sys.executable, "-W", "ignore", "-m", "fedhca2.clients.precompile", str(device), str(at_once)]
    environment, pipe = {**same_modules(), **SERIAL}, subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        importlib.import_module(COMPILER)  # this import takes seconds here as well
        with suppress(BrokenPipeError), process.stdin:
            json.dump([job for jobs in by_kind for job in jobs], process.stdin)
        for jobs in by_kind:
            finished = list(islice(process.stdout, len(jobs)))
            if traces and len(finished) == len(jobs) and jobs is not by_kind[-1]:  # clients of the last kind do it next
                _trace(device, jobs)
    return process.returncode == 0


def mark_of(jobs: Sequence[Job], gpu: str) -> str:
    """The name of the file that says that these jobs are done, by this version of the package and of torch."""
    name = f"{__version__} {torch.__version__} {gpu} {json.dumps(jobs)}"
    return f"fedhca2-{sha256(name.encode()).hexdigest()[:16]}"


def _jobs(client: Client, model: ModelConfig, size: Size, outputs: Outputs) -> list[Job]:
    """What to compile for one model and image size, the longest jobs first."""
    each = [{task: output} for task, output in outputs.items()]
    names = sorted(parts(client.personal.model), key=REST.__ne__)
    needed = [(INPUT, outputs), *((name, each[0]) for name in names), *((LOSS, one) for one in each)]
    job = {"model": model.model_dump(mode="json"), "training": client.training.model_dump(mode="json"), "size": size}
    declared = client.personal.model.tasks.declared
    return [
        {**job, "part": part, "outputs": own, "tasks": {task: declared[task] for task in own if task in declared}}
        for part, own in needed
    ]


def _compile_afresh(device: torch.device, job: Job) -> None:
    """Compile what a job asks for, in a process that may have compiled for others."""
    torch.compiler.reset()
    gc.collect()  # once: the last job's tensors may be in cycles
    _compile(device, job)
    torch.cuda.synchronize()


def _compile(device: torch.device, job: Job) -> None:
    """Compile what a job asks for, on random input, or find it on disk."""
    training, outputs = Training(**job["training"]), job["outputs"]
    tasks = make_task_set({name: DeclaredTask(**declared) for name, declared in job["tasks"].items()})
    height, width = job["size"]
    sample = {"image": torch.zeros(3, height, width, dtype=torch.uint8)}
    for task, (_, dtype, count) in outputs.items():
        shape = (count, height, width) if tasks[task].output == "map" else (count,)
        sample[task] = torch.zeros(shape, dtype=getattr(torch, dtype))
    channels = {task: count for task, (count, _, _) in outputs.items()}
    if job["part"] == INPUT:  # of clients with and without the task that chooses crops, in training and evaluation
        feed = DeviceFeed(device, compile=True)
        for own in (sample, {name: value for name, value in sample.items() if name != tasks.crop_chooser(sample)}):
            chooser, count = tasks.crop_chooser(own), training.batch_size
            form = InputFormat(tasks, (height, width), channels[chooser] if chooser else 0)
            for choices in (Choices.draw(np.random.default_rng(0), count), Choices.none(count)):
                feed.prepared(pack([own] * count, choices, (height, width)), form, feed.prepare)
    else:
        config = ModelConfig(**job["model"]).blank
        model = build_model(config, channels, (height, width), seed=0, client="", tasks=tasks)
        set_mode(model.to(device), frozenset())
        _compile_step(model, job["part"], training, sample)


@without_collecting()
def _trace(device: torch.device, jobs: Sequence[Job]) -> None:
    """Trace the step that these jobs of one kind compiled, and load it; its clients do so if there is no room now."""
    with suppress(torch.OutOfMemoryError), torch._inductor.config.patch(compile_threads=1):
        _compile(device, {**jobs[0], "part": ALL})  # the first one has all tasks
        torch.cuda.synchronize()


def _compile_step(model: MultiTaskModel, part: str, training: Training, sample: Sample) -> None:
    """Compile one part of a training step, or all of it; with a loss, also the same task's prediction."""
    use_fast_layers(model, compile=True)
    compile_parts(model, None if part == ALL else part)
    device = next(model.parameters()).device
    labels = Batch.of(collate([sample] * training.batch_size)).map(lambda value: value.to(device)).labels
    image = torch.randn(training.batch_size, *sample["image"].shape, device=device)
    batch = Batch(image, labels, keep=torch.ones(len(model.drops), training.batch_size, device=device))
    optimizer = Learner(model, training).optimizer
    loss = compiled(task_loss, part in (LOSS, ALL))
    take_step(model, optimizer, batch, training.precision, loss=loss, weighted=training.loss_weights)
    if part == LOSS:
        CapturedForward(Captures(device, compile=True), model, image, training.precision)


if __name__ == "__main__":  # runs the jobs in forks, since it has imported everything; writes a line for each done
    importlib.import_module(COMPILER)
    lines, sys.stdout = sys.stdout, sys.stderr  # no library may print among them
    gc.disable()  # it takes a twelfth of tracing
    jobs, devices = json.load(sys.stdin), repeat(torch.device(sys.argv[1]))
    with ProcessPoolExecutor(int(sys.argv[2]), multiprocessing.get_context("fork")) as pool:
        for job, _ in zip(jobs, pool.map(_compile_afresh, devices, jobs), strict=True):
            print(job["part"], file=lines, flush=True)
