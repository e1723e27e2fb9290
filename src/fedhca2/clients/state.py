"""A client's state: everything that its next round depends on, but for its data and the experiment."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedhca2.clients.state_file import ClientState
from fedhca2.clients.training import Learner
from fedhca2.params import Slot

if TYPE_CHECKING:
    from fedhca2.clients.client import Client


def client_state(client: "Client", device: torch.device) -> ClientState:
    """A copy of a client's models, optimiser moments and rows, on a device."""
    tensors = _learner_tensors("personal", client.personal)
    if client.shared is not client.personal:
        tensors |= _learner_tensors("shared", client.shared)
    rows = {"start": client.start, "received": client.received, "published": client.published}
    rows["remembered"] = {slot: row for slot, (row, _) in client.remembered.items()}
    tensors |= {f"{kind}/{slot}": row for kind, held in rows.items() for slot, row in held.items()}
    counts = {str(slot): count for slot, (_, count) in client.remembered.items()}
    values = {"client": client.name, "remembered": counts, "noise_key": client.noise_key.hex()}
    copies = {name: torch.empty_like(tensor, device=device) for name, tensor in tensors.items()}
    torch._foreach_copy_(list(copies.values()), [tensor.detach() for tensor in tensors.values()])
    return ClientState(copies, values)


def restore_client(client: "Client", state: ClientState) -> None:
    """Put a client where `client_state` found it."""
    if state.values.get("client") != client.name:
        raise ValueError(f"the state should be of client {client.name!r}, found {state.values.get('client')!r}")
    _restore_learner("personal", client.personal, state.tensors)
    if client.shared is not client.personal:
        _restore_learner("shared", client.shared, state.tensors)
    rows: dict[str, dict[Slot, Tensor]] = {"start": {}, "received": {}, "published": {}, "remembered": {}}
    for name, tensor in state.tensors.items():
        kind, _, slot = name.partition("/")
        if kind in rows:
            rows[kind][Slot.parse(slot)] = tensor.to(client.where)
    client.start, client.received, client.published = rows["start"], rows["received"], rows["published"]
    counts = state.values["remembered"]
    client.remembered = {slot: (row, counts[str(slot)]) for slot, row in rows["remembered"].items()}
    client.noise_key = bytes.fromhex(state.values["noise_key"])


def _learner_tensors(kind: str, learner: Learner) -> dict[str, Tensor]:
    tensors = {f"{kind}/model/{name}": tensor for name, tensor in learner.model.state_dict().items()}
    for name, parameter in learner.model.named_parameters():
        for moment, value in learner.optimizer.state.get(parameter, {}).items():
            tensors[f"{kind}/optimizer/{moment}/{name}"] = value
    return tensors


def _restore_learner(kind: str, learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    prefix = f"{kind}/model/"
    model = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    try:
        learner.model.load_state_dict(model)
    except RuntimeError as error:
        raise ValueError(f"the state does not fit the {kind} model: {' '.join(str(error).split())}") from None
    parameters = dict(learner.model.named_parameters())
    learner.optimizer.state.clear()
    for name, tensor in tensors.items():
        if name.startswith(f"{kind}/optimizer/"):
            moment, _, parameter = name.removeprefix(f"{kind}/optimizer/").partition("/")
            held = learner.optimizer.state[parameters[parameter]]
            held[moment] = tensor.to(parameters[parameter].device, copy=True)
