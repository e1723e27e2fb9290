"""How the built-in weights of `swin_micro` were made: all tasks of many other rendered scenes, learned by one model.

The papers start from an encoder that was trained on another data set; this is the equivalent for rendered scenes.
No scene here belongs to an experiment: they have another seed. Needs a GPU: about five minutes on an H200.

    python examples/pretrain_encoder.py swin_micro.safetensors
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from math import cos, pi
from time import perf_counter

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedhca2.data.augmentation import Choices, InputFormat, Packed, Preparation
from fedhca2.data.scenes import LABELS, render
from fedhca2.models import EncoderConfig, ModelConfig, MultiTaskModel
from fedhca2.models.multitask import apply_head
from fedhca2.tasks import TASKS, TaskSet

SEED = 7_000_000
SIZE = (64, 64)
SCALES = (0.75, 1.25)
LEARNING_RATE = 1.5e-3
LONGEST_GRADIENT = 5.0
OUTPUTS = {
    f"{domain}_{task}": (domain, task) for domain in ("outdoor", "indoor") for task in LABELS[domain] if task in TASKS
}


def render_chunk(domain: str, indices: range) -> dict[str, Tensor]:
    """Images and labels of these scenes."""
    torch.set_num_threads(1)
    scenes = render(domain, indices, size=SIZE, seed=SEED)
    return {
        name: scenes[name].half() if name == "depth" else scenes[name]
        for name in ("image", *LABELS[domain])
        if name == "image" or name in TASKS
    }


def render_all(domain: str, count: int, pool: ProcessPoolExecutor) -> dict[str, Tensor]:
    """Images and labels of many scenes, on the GPU."""
    ranges = [range(start, min(start + 200, count)) for start in range(0, count, 200)]
    chunks = list(pool.map(render_chunk, [domain] * len(ranges), ranges))
    return {name: torch.cat([chunk[name].cuda() for chunk in chunks]) for name in chunks[0]}


def losses(model: MultiTaskModel, batches: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """The loss of every task of every domain; all images pass through the encoder together."""
    with torch.autocast("cuda", torch.bfloat16):
        features = model.encoder(torch.cat([batch["image"] for batch in batches.values()]))
        parts = dict(
            zip(batches, zip(*(feature.chunk(len(batches)) for feature in features), strict=True), strict=True)
        )
        outputs = {
            name: apply_head(model.heads[name], model.decoders[name](parts[domain]), torch.Size(SIZE))
            for name, (domain, _) in OUTPUTS.items()
        }
    return {
        name: TASKS[task].weight * TASKS[task].loss(outputs[name], batches[domain][task])
        for name, (domain, task) in OUTPUTS.items()
    }


class CapturedStep:
    """A training step, captured as a CUDA graph: its many small kernels would otherwise wait for Python."""

    def __init__(self, model: MultiTaskModel) -> None:
        self.model = model
        self.rate = torch.tensor(0.0, device="cuda")
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.rate, weight_decay=0.05, fused=True, capturable=True
        )
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batches: dict[str, dict[str, Tensor]], rate: float) -> dict[str, Tensor]:
        """Take a step; returns the losses, which the next step overwrites."""
        self.rate.fill_(rate)
        if self.graph is None:
            self.batches = batches
            self._capture()
        for domain, batch in batches.items():
            for name, values in batch.items():
                self.batches[domain][name].copy_(values)
        self.graph.replay()
        return self.losses

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.losses = self._step()

    def _step(self) -> dict[str, Tensor]:
        self.optimizer.zero_grad()
        parts = losses(self.model, self.batches)
        torch.stack(list(parts.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), LONGEST_GRADIENT)
        self.optimizer.step()
        return {name: loss.detach() for name, loss in parts.items()}


def main() -> None:
    """Render, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--encoder", default="swin_micro")
    parser.add_argument("--scenes", type=int, default=60_000, help="of each domain")
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--batch", type=int, default=64, help="of each domain")
    options = parser.parse_args()
    torch.manual_seed(0)
    began = perf_counter()
    with ProcessPoolExecutor() as pool:
        data = {domain: render_all(domain, options.scenes, pool) for domain in LABELS}
    print(f"rendered {len(data) * options.scenes} scenes in {perf_counter() - began:.0f} s", flush=True)
    channels = {name: TASKS[task].channels_for(LABELS[domain][task]) for name, (domain, task) in OUTPUTS.items()}
    tasks = TaskSet(replace(TASKS[task], name=name) for name, (_, task) in OUTPUTS.items())
    config = ModelConfig(encoder=EncoderConfig(name=options.encoder), decoder_width=64)
    model = MultiTaskModel(config, channels, SIZE, tasks).cuda().train()
    step = CapturedStep(model)
    prepare, form, rng = Preparation(compile=True), InputFormat(TASKS, SIZE), np.random.default_rng(0)
    lengths = torch.tensor(SIZE, device="cuda").expand(options.batch, 2)
    for number in range(options.steps):
        batches = {}
        for domain, scenes in data.items():
            chosen = torch.randint(0, options.scenes, (options.batch,), device="cuda")
            raw = {name: values[chosen] for name, values in scenes.items()}
            choices = Choices.draw(rng, options.batch, SCALES).map(Tensor.cuda)
            batches[domain] = prepare(Packed(raw, lengths, choices), form)
        rate = min((number + 1) / 500, 0.5 + 0.5 * cos(pi * number / options.steps))
        parts = step(batches, LEARNING_RATE * rate)
        if number % 1000 == 0 or number == options.steps - 1:
            shown = " ".join(f"{name} {loss.item():.3f}" for name, loss in parts.items())
            print(f"step {number} after {perf_counter() - began:.0f} s: {shown}", flush=True)
    save_file({key: value.half().cpu().contiguous() for key, value in model.encoder.state_dict().items()}, options.out)


if __name__ == "__main__":
    main()
