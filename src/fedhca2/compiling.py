"""How functions and modules are compiled for a GPU."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

ALIGNMENT = 8  # matrix sizes are rounded up to a multiple of this, for the tensor cores
# Sizes never change within a run. Autotuning each elementwise kernel would double the compile time.
SETTINGS: dict[str, Any] = {"dynamic": False, "options": {"triton.autotune_pointwise": False}}


# Warnings about single kernels, which users can do nothing about.
warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")


def compiled(function: F, wanted: bool = True) -> F:
    """Compile the function on its first call, or return it unchanged if that is not wanted."""
    return cast(F, torch.compile(function, **SETTINGS)) if wanted else function
