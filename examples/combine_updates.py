"""An aggregator that looks at coordinates, defined outside the package: the median of updates of equal length.

    method: {name: "examples/combine_updates.py:EQUAL_SAY"}

Run this file to check it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhca2.methods import Combiner, Layout, Member, Method, Rows


class EqualSay(Combiner):
    """Scale every update to the median length, and take the median of each coordinate."""

    kind: str = "equal_say"

    def measured(self, rows: Rows) -> Tensor:
        """The factor of every row: a number that needs the whole row, so it is measured first."""
        lengths = rows.norms()
        return lengths.median() / lengths.clamp(min=1e-12)

    def combine(self, block: Tensor, members: Sequence[Member], measured: Tensor) -> Tensor:
        """One row for all, from some columns of all rows."""
        return (block * measured.to(block)[:, None]).quantile(0.5, dim=0, keepdim=True)


EQUAL_SAY = Method(encoder=EqualSay(), reference="an example")

if __name__ == "__main__":
    updates = [torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.0]), torch.tensor([0.0, 300.0])]
    members, layout = [Member(name, "demo") for name in ("ann", "bob", "eve")], Layout(("layer.weight",), ((2, 1),))
    aggregator, rows = EqualSay(), Rows(members, layout, updates)
    print(f"all add {aggregator.combine(torch.stack(updates), members, aggregator.measured(rows))[0].tolist()}")
