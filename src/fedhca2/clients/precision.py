"""Mixed precision."""

from contextlib import AbstractContextManager

import torch


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Mixed precision where it is asked for, or where the device is made for it."""
    wanted = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)
