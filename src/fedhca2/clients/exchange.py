"""What leaves a client."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from fedhca2.clients.privacy import privatise
from fedhca2.messages import Order
from fedhca2.params import Slot, flatten, layer_products

if TYPE_CHECKING:
    from fedhca2.clients.client import Client


def leaving(client: "Client", order: Order, uploads: list[Slot]) -> tuple[dict[Slot, Tensor], dict[Slot, Tensor]]:
    """The rows that are sent, and the updates that agreement is measured on."""
    trained = own_rows(client, client.start)
    updates = {slot: trained[slot] - start for slot, start in client.start.items()}
    wants_updates = {slot: order.upload[slot.part] == "updates" for slot in uploads}
    if not client.privacy.active:
        return {slot: updates[slot] if wants_updates[slot] else trained[slot] for slot in uploads}, updates
    # Parameters go up as what the server knows already plus a clipped and noised change: what was trained in
    # earlier rounds shows in no other way than it did then. Agreement is measured on what is sent anyway.
    changes = {
        slot: updates[slot] if wants_updates[slot] else trained[slot] - client.published[slot] for slot in uploads
    }
    changes = privatise(changes, client.privacy, client.noise_key, order.round)
    rows = {
        slot: change if wants_updates[slot] else client.published[slot] + change for slot, change in changes.items()
    }
    client.published |= {slot: row for slot, row in rows.items() if not wants_updates[slot]}
    return rows, {slot: row for slot, row in rows.items() if wants_updates[slot]}


def own_rows(client: "Client", slots: Iterable[Slot]) -> dict[Slot, Tensor]:
    """The values of slots in the model that is shared."""
    held = client.shared.model.slots()
    return {slot: flatten(held[slot], client.layouts[slot]) for slot in slots}


def agreement_with(client: "Client", slot: Slot, update: Tensor) -> tuple[float, ...]:
    """⟨last aggregated update, own update⟩ for each weight that scaled the former: minus the weight's gradient."""
    sent, weights = client.remembered[slot]
    products = layer_products(sent, update, client.layouts[slot])
    return tuple(products.tolist()) if weights > 1 else (float(products.sum()),)
