"""How functions and modules are compiled for a GPU."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

# Sizes never change within a run. Trying several forms of each elementwise kernel would double the time of compiling.
SETTINGS: dict[str, Any] = {"dynamic": False, "options": {"triton.autotune_pointwise": False}}


# Remarks on single kernels, which nobody who trains can do anything about.
warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")


def compiled(function: F) -> F:
    """The function, compiled when it is first called."""
    return cast(F, torch.compile(function, **SETTINGS))
