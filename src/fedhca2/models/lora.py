"""Low-rank adapters (Hu et al. 2022): small matrices beside frozen linear layers."""

from collections.abc import Iterable
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhca2.models.config import Lora


class LoraLinear(nn.Linear):
    """A linear layer plus `scale · up · down`, which is 0 at first: W·x + (α/r)·B·A·x."""

    down: nn.Parameter
    up: nn.Parameter
    scale: float

    def forward(self, input: Tensor) -> Tensor:
        """Apply both."""
        low = functional.linear(functional.linear(input, self.down), self.up)
        return functional.linear(input, self.weight, self.bias) + self.scale * low

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{super().extra_repr()}, rank={len(self.down)}, scale={self.scale:g}"


def add_adapters(body: nn.Module, names: Iterable[str], config: Lora) -> set[str]:
    """Give these linear layers adapters, in place; returns the names of the new parameters."""
    added = set()
    for name in names:
        layer = body.get_submodule(name)
        layer.__class__ = LoraLinear
        assert isinstance(layer, LoraLinear)
        down = torch.empty(config.rank, layer.in_features)
        nn.init.kaiming_uniform_(down, a=sqrt(5))
        layer.down = nn.Parameter(down)
        layer.up = nn.Parameter(torch.zeros(layer.out_features, config.rank))
        layer.scale = config.alpha / config.rank
        added |= {f"{name}.down", f"{name}.up"}
    return added


def linears(body: nn.Module) -> list[str]:
    """The names of all linear layers."""
    return [name for name, module in body.named_modules() if type(module) is nn.Linear]


@torch.no_grad()
def called_linears(body: nn.Module, image: Tensor) -> list[str]:
    """The linear layers that a forward pass calls; some backbones have others, or use weights without calling them."""
    called: dict[str, None] = {}
    hooks = [
        body.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: called.setdefault(name))
        for name in linears(body)
    ]
    body(image)
    for hook in hooks:
        hook.remove()
    return list(called)
