"""How far one hostile client of four moves the others: attack × method × defence.

    python tests/poison.py                                        # the whole table
    python tests/poison.py --methods fedavg fedhca2 --markdown
    python tests/poison.py --methods "upgrad weighting=mean" krum --defence "no guard"   # a column for each method
    python tests/poison.py --methods fedavg fedhca2 --defence guard --images 1 1000 1000000000   # what a lie adds

Clients learn by Adam from noisy gradients, each towards an optimum of its own that is near the others'; rounds, weights
and guard are the server's own. One client plays an attack in every round. Drift is |θ − θ'| / |θ'| over all values that
the others hold at the end, where θ' is what they hold if that client is away; their loss follows, as a multiple of
what it is then. `refused` says that no reply was used: all is as if the client were away, to the last bit. As in real
runs, training moves a row by a few hundredths of what the guard takes for possible, and that is about the row's length.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedhca2.clients import Privacy, Schedule, Training
from fedhca2.experiment.settings import GuardBounds
from fedhca2.federation.guard import Guard, Reach
from fedhca2.federation.server import Server
from fedhca2.messages import Reply
from fedhca2.methods import METHODS, Method, resolve
from fedhca2.params import Slot, unflatten
from noisy_learner import LAYOUTS, RATE, STEPS, Learner, draw

ROUNDS = 6
EVE = "eve"  # the hostile one
SITES = {"road": ("semseg",), "street": ("semseg",), EVE: ("semseg",), "home": ("semseg", "depth")}
TRAINING = Training(batch_size=1, learning_rate=RATE, schedule=Schedule(warmup_epochs=0, lowest=RATE, lag=False))
REACH = Reach(TRAINING, Privacy(), ROUNDS, dict.fromkeys(SITES, 1))


DEFENCES = {"no guard": GuardBounds(reach=0, jump=0), "guard": GuardBounds(), "reach 0.1": GuardBounds(reach=0.1)}


@dataclass
class Eve:
    """What a hostile client knows: its own training, the guard's bounds, and what it sent before."""

    client: Learner
    guard: GuardBounds
    uploads: Mapping[str, str]
    round: int = 0
    first: Mapping[Slot, Tensor] = field(default_factory=dict)  # honest rows of the first round
    used: dict[Slot, float] = field(default_factory=dict)  # largest shares of the reach so far

    def moved(self, slot: Slot, update: Tensor) -> Tensor:
        """The row to send if training had moved the slot by this."""
        return update if self.uploads[slot.part] == "updates" else self.client.start[slot] + update

    def limit(self, slot: Slot) -> float:
        """The farthest that a round can move a slot."""
        return REACH.of_row(self.client.profile, slot.part, LAYOUTS[slot.part].numel, range(1), STEPS).within(1.0)

    def wrong(self, slot: Slot, share: float) -> Tensor:
        """A move by this share of the limit, away from the optimum common to all clients."""
        direction = -draw(LAYOUTS[slot.part].numel, "all", slot)
        return self.moved(slot, share * self.limit(slot) * direction / direction.norm())


def at_reach(eve: Eve, slot: Slot, row: Tensor) -> Tensor:
    """The farthest the guard allows in every round."""
    return eve.wrong(slot, 0.999 * (eve.guard.reach or 1.0))


def at_jump(eve: Eve, slot: Slot, row: Tensor) -> Tensor:
    """Honest at first, then nearly `jump` times its own largest move in every round, within the reach."""
    if not eve.round:
        moved = eve.client.rows[slot] - eve.client.start[slot]
        eve.used[slot] = float(moved.norm()) / eve.limit(slot)
        return row
    eve.used[slot] = 0.999 * min((eve.guard.jump or 10.0) * eve.used[slot], eve.guard.reach or 1.0)
    return eve.wrong(slot, eve.used[slot])


def half_poison(eve: Eve, slot: Slot, row: Tensor) -> Tensor:
    """An honest move, plus a move half as far the wrong way: nothing about it is unusual."""
    honest = eve.client.rows[slot] - eve.client.start[slot]
    direction = -draw(LAYOUTS[slot.part].numel, "all", slot)
    return eve.moved(slot, honest + 0.5 * honest.norm() * direction / direction.norm())


def foreign(eve: Eve, slot: Slot, row: Tensor) -> Tensor:
    """Its own model, or the way there: its values in reverse order."""
    return eve.moved(slot, eve.client.rows[slot].flip(0) - eve.client.start[slot])


def below_zero(eve: Eve, slot: Slot, row: Tensor) -> Tensor:
    """Statistics with negative variances."""
    mean, variance = unflatten(row, LAYOUTS[slot.part]).values()
    return torch.cat([mean, -variance])


@dataclass(frozen=True)
class Attack:
    """What is sent for a slot instead of the honest row."""

    change: Callable[[Eve, Slot, Tensor], Tensor]
    statistics: bool = False  # it is about running statistics, which the method shares then


ATTACKS = {
    "none: an honest client": Attack(lambda eve, slot, row: row),
    "scaled by 100": Attack(lambda eve, slot, row: 100 * row),
    "scaled by 10": Attack(lambda eve, slot, row: 10 * row),
    "turned round": Attack(lambda eve, slot, row: -row),
    "1e30 everywhere": Attack(lambda eve, slot, row: torch.full_like(row, 1e30)),
    "foreign parameters": Attack(foreign),
    "wrong way, at the reach": Attack(at_reach),
    "wrong way, at the jump": Attack(at_jump),
    "honest, and half poison": Attack(half_poison),
    "no update": Attack(lambda eve, slot, row: eve.moved(slot, torch.zeros_like(row))),
    "the first reply again": Attack(lambda eve, slot, row: eve.first[slot]),
    "variances below zero": Attack(below_zero, statistics=True),
    "statistics times a million": Attack(lambda eve, slot, row: 1e6 * row, statistics=True),
}


def method_of(text: str, **settings: str) -> Method:
    """A method by its name, or by its name and settings: `upgrad weighting=mean`."""
    name, *pairs = text.split()
    return resolve(name, dict(pair.split("=") for pair in pairs) | settings)


def applies(attack: str, method: str) -> bool:
    """Whether an attack concerns something that a method shares."""
    played = method_of(method)
    shared = played.aggregators(0)
    if ATTACKS[attack].statistics:
        return "decoder" in shared and played.local.replaces and played.norms == "shared"
    return bool(shared)


@dataclass(frozen=True)
class Ended:
    """The others' final models, and who was refused in each round."""

    values: Tensor
    loss: float
    refused: Sequence[Mapping[str, str]]


def federate(method: Method, guard: GuardBounds, attack: Attack | None, images: int = STEPS) -> Ended:
    """A whole run, with an attack or without the hostile client, which says that it has this many images."""
    clients = {name: Learner(name, tasks, method) for name, tasks in SITES.items()}
    clients[EVE].profile = replace(clients[EVE].profile, samples=images)
    server = Server(method, [client.profile for client in clients.values()])
    eve = Eve(clients[EVE], guard, method.uploads(0))
    state, sent, refused = server.start(), {}, []
    for round in range(ROUNDS):
        replies = [client.answer(round, eve.uploads) for name, client in clients.items() if attack or name != EVE]
        replies = [spoilt(eve, reply, attack) if reply.client == EVE else reply for reply in replies]
        state, sent, record = Guard(server, guard, REACH).step(state, replies, sent)
        for name, deliveries in sent.items():
            clients[name].receive(deliveries)
        refused.append(record.refused)
    others = [client for name, client in clients.items() if name != EVE]
    values = torch.cat([row for client in others for row in client.model.values()]).double()
    return Ended(values, sum(client.loss for client in others), refused)


def spoilt(eve: Eve, reply: Reply, attack: Attack) -> Reply:
    """The reply that the hostile client sends instead of an honest one."""
    eve.round, eve.first = reply.round, eve.first or reply.rows
    attacked = [slot for slot in reply.rows if (slot.part == "decoder_norms") == attack.statistics]
    return replace(
        reply, rows={**reply.rows, **{slot: attack.change(eve, slot, reply.rows[slot]) for slot in attacked}}
    )


@dataclass(frozen=True)
class Cell:
    """The effect of one attack on the others under one method and defence."""

    attack: str
    method: str
    defence: str
    drift: float
    loss: float  # a multiple of what it is without the hostile client
    refused: int  # replies of the hostile client
    wronged: int  # replies of others that were refused

    def __str__(self) -> str:
        if self.refused == ROUNDS:
            return "refused"
        shown = f"{self.drift:.2g} ({self.loss:.2g})" if isfinite(self.drift + self.loss) else "lost"
        return f"{shown}, refused {self.refused}/{ROUNDS}" if self.refused else shown


@cache
def played(attack: str, statistics: bool, method: str, defence: str, images: int) -> Ended:
    """The end of a run, with or without an attack."""
    settings = {"batch_norm": "average"} if statistics else {}
    return federate(method_of(method, **settings), DEFENCES[defence], ATTACKS[attack] if attack else None, images)


def cell(attack: str, method: str, defence: str, images: int = STEPS) -> Cell:
    """One cell of the table; `images` is what the hostile client says it has."""
    found, absent = (played(name, ATTACKS[attack].statistics, method, defence, images) for name in (attack, ""))
    drift = float((found.values - absent.values).norm() / absent.values.norm())
    refused = [name for names in found.refused for name in names]
    return Cell(
        attack, method, defence, drift, found.loss / absent.loss, refused.count(EVE), len(refused) - refused.count(EVE)
    )


def cells(methods: Sequence[str] = tuple(METHODS), defences: Sequence[str] = tuple(DEFENCES)) -> Iterator[Cell]:
    """The table, without attacks on what a method does not share."""
    for attack, method in rows(methods):
        yield from (cell(attack, method, defence) for defence in defences)


def rows(methods: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every attack on every method, without attacks on what a method does not share."""
    return ((attack, method) for attack in ATTACKS for method in methods if applies(attack, method))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--defence", choices=DEFENCES, help="this one alone, with a column for each method")
    parser.add_argument("--images", nargs="+", type=int, help="with --defence: a column for each number it says it has")
    parser.add_argument("--markdown", action="store_true", help="as it stands in docs/security.md")
    options = parser.parse_args()
    lines: dict[tuple[str, ...], list[str]] = {}
    if options.images:
        columns = ("method", *map(str, options.images))
        for key in rows(options.methods):
            lines[key] = [str(cell(*key, options.defence or "guard", images)) for images in options.images]
    else:
        columns = options.methods if options.defence else ("method", *DEFENCES)
        for each in cells(options.methods, [options.defence] if options.defence else tuple(DEFENCES)):
            key = (each.attack,) if options.defence else (each.attack, each.method)
            lines.setdefault(key, []).append(str(each))
    if options.markdown:
        print("\n".join(f"| {' | '.join((*key, *values))} |" for key, values in lines.items()))
        return
    table = Table("attack", *columns, title="the others' drift (and loss)")
    for key, values in lines.items():
        table.add_row(*key, *values)
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
