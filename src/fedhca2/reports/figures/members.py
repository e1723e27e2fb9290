"""Aggregations of the same members, of whom some may be away in a round."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array


def by_members(events: Iterable[Event]) -> list[tuple[list[str], list[Event]]]:
    """Aggregations that have members in common, together, with all the members that they ever had.

    >>> rounds = [{"members": ["a", "b"]}, {"members": ["x", "y"]}, {"members": ["b", "c"]}]
    >>> [members for members, _ in by_members(rounds)]
    [['a', 'b', 'c'], ['x', 'y']]
    """
    groups: list[tuple[set[str], list[Event]]] = []
    for event in events:
        members = set(event["members"])
        known = next((group for group in groups if group[0] & members), None)
        if known is None:
            groups.append((members, [event]))
        else:
            known[0].update(members)
            known[1].append(event)
    return [(sorted(members), held) for members, held in groups]


def spread(values: Array, present: Sequence[str], members: Sequence[str]) -> Array:
    """A matrix of those present as one of all members, with NaN for those who were away; [..., N, N].

    >>> spread(np.ones((1, 1)), ["b"], ["a", "b"]).tolist()
    [[nan, nan], [nan, 1.0]]
    """
    places = [members.index(name) for name in present]
    whole = np.full((*values.shape[:-2], len(members), len(members)), np.nan)
    whole[..., np.array(places)[:, None], places] = values
    return whole
