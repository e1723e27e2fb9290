"""A client without a model: one row per slot, and training that adds given values."""

import torch

from fedhca2.messages import Reply
from fedhca2.params import add_scaled, layer_products


class ArrayClient:
    """Handles deliveries as a client must, and does nothing else."""

    def __init__(self, profile, rows):
        self.profile, self.rows = profile, rows
        self.remembered = {}

    def train(self, round, deltas, uploads):
        self.start = self.rows
        self.rows = {slot: row + deltas[slot] for slot, row in self.rows.items()}
        sent = {"updates": deltas, "parameters": self.rows}
        rows = {slot: sent[uploads[slot.part]][slot] for slot in self.rows if slot.part in uploads}
        agreement = {}
        for slot, (added, count) in self.remembered.items():
            products = layer_products(added, deltas[slot], self.profile.layouts[slot])
            agreement[slot] = tuple(products.tolist()) if count > 1 else (float(products.sum()),)
        return Reply(self.profile.client, round, rows, agreement)

    def receive(self, deliveries):
        for slot, delivery in deliveries.items():
            nothing = torch.zeros_like(self.rows[slot])
            row = {"trained": self.rows[slot], "start": self.start[slot], "nothing": nothing}[delivery.base]
            for addend in delivery.addends:
                scale = torch.tensor(addend.scale, dtype=torch.float64)
                row = add_scaled(row, addend.row, scale, self.profile.layouts[slot])
                if addend.remember:
                    self.remembered[slot] = (addend.row, len(addend.scale))
            self.rows = {**self.rows, slot: row}
