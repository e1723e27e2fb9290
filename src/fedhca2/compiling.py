"""How functions and modules are compiled for a GPU."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

ALIGNMENT = 8  # of the sizes of matrices, for the tensor cores
# Sizes never change within a run. Trying several forms of each elementwise kernel would double the time of compiling.
SETTINGS: dict[str, Any] = {"dynamic": False, "options": {"triton.autotune_pointwise": False}}


# Remarks on single kernels, which nobody who trains can do anything about.
warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")


def compiled(function: F, wanted: bool = True) -> F:
    """The function, compiled when it is first called; as it is where that is not wanted."""
    return cast(F, torch.compile(function, **SETTINGS)) if wanted else function
