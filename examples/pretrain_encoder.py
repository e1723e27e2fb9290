"""Train the embedded weights of `swin_micro` on semantic segmentation of other rendered scenes.

The papers start from an encoder that was trained on another data set (ADE20K); this does the same for rendered scenes.
The scenes use a seed of their own, so no experiment has any of them. It needs a GPU and about four minutes:

    python examples/pretrain_encoder.py swin_micro.safetensors
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from math import cos, pi
from time import perf_counter

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from fedhca2.data.scenes.labels import LABELS
from fedhca2.data.scenes.rendering import render
from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN
from fedhca2.losses import cross_entropy
from fedhca2.models import EncoderConfig, ModelConfig, MultiTaskModel

SEED = 7_000_000
SIZE = (64, 64)
DOMAINS = ("outdoor", "indoor")


def render_chunk(domain: str, indices: range) -> tuple[Tensor, Tensor]:
    """Render the images and class maps of these scenes."""
    torch.set_num_threads(1)
    scenes = render(domain, indices, size=SIZE, seed=SEED)
    return scenes["image"], scenes["semseg"]


def render_all(domain: str, count: int, pool: ProcessPoolExecutor) -> tuple[Tensor, Tensor]:
    """Render many scenes in parallel and put them on the GPU."""
    ranges = [range(start, min(start + 50, count)) for start in range(0, count, 50)]
    chunks = pool.map(render_chunk, [domain] * len(ranges), ranges)
    images, labels = zip(*chunks, strict=True)
    return torch.cat(images).cuda(), torch.cat(labels).cuda()


def augmented(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Take a random part of each image, mirror half of them, and change the light."""
    count = len(images)
    scale = torch.empty(count, device="cuda").uniform_(0.5, 1.2)
    shift = (1 - scale).clamp(min=0)[:, None] * torch.empty(count, 2, device="cuda").uniform_(-1, 1)
    theta = torch.zeros(count, 2, 3, device="cuda")
    theta[:, 0, 0] = scale * torch.randint(0, 2, (count,), device="cuda").mul(2).sub(1)
    theta[:, 1, 1] = scale
    theta[:, :, 2] = shift
    grid = functional.affine_grid(theta, [count, 3, *SIZE], align_corners=False)
    images = functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    labels = functional.grid_sample(labels.float(), grid, mode="nearest", padding_mode="border", align_corners=False)
    light = torch.empty(count, 3, 1, 1, device="cuda").uniform_(0.7, 1.3)
    images = (images * light + torch.empty(count, 1, 1, 1, device="cuda").uniform_(-32, 32)).clamp(0, 255)
    return (images - IMAGE_MEAN.cuda()) / IMAGE_DEVIATION.cuda(), labels


def main() -> None:
    """Render, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--encoder", default="swin_micro")
    parser.add_argument("--scenes", type=int, default=16_000, help="scenes per domain")
    parser.add_argument("--steps", type=int, default=6_000)
    parser.add_argument("--batch", type=int, default=64, help="images per domain")
    options = parser.parse_args()
    torch.manual_seed(0)
    began = perf_counter()
    with ProcessPoolExecutor() as pool:
        data = {domain: render_all(domain, options.scenes, pool) for domain in DOMAINS}
    print(f"rendered {2 * options.scenes} scenes in {perf_counter() - began:.0f} s", flush=True)
    config = ModelConfig(encoder=EncoderConfig(name=options.encoder), decoder_width=64)
    model = MultiTaskModel(config, {d: LABELS[d]["semseg"].classes for d in DOMAINS}, SIZE).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05, fused=True)
    step = torch.compile(model)
    for number in range(options.steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * min((number + 1) / 500, 0.5 + 0.5 * cos(pi * number / options.steps))
        loss = torch.zeros((), device="cuda")
        batch = []
        for images, labels in data.values():
            chosen = torch.randint(0, len(images), (options.batch,), device="cuda")
            batch.append(augmented(images[chosen], labels[chosen]))
        with torch.autocast("cuda", torch.bfloat16):
            outputs = step(torch.cat([images for images, _ in batch]))
        for i, domain in enumerate(DOMAINS):
            part = slice(i * options.batch, (i + 1) * options.batch)
            loss = loss + cross_entropy(outputs[domain][part], batch[i][1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 500 == 0:
            print(f"step {number} loss {loss.item():.3f} after {perf_counter() - began:.0f} s", flush=True)
    save_file({key: value.half().cpu().contiguous() for key, value in model.encoder.state_dict().items()}, options.out)


if __name__ == "__main__":
    main()
