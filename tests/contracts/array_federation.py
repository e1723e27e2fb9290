"""A federation of array clients, whose training adds random numbers."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from array_client import ArrayClient
from fedhca2.federation.guard import Guard
from fedhca2.federation.server import Server
from fedhca2.messages import Profile
from fedhca2.methods import METHODS
from fedhca2.params import Layout, Slot

LAYOUTS = {
    "encoder": Layout(("stem.weight", "stem.bias", "block.weight"), ((2, 3), (2,), (2, 2))),
    "decoder": Layout(("fuse.weight", "fuse.bias", "norm.weight"), ((2, 2), (2,), (2,))),
    "head": Layout(("last.weight",), ((1, 2),)),
    "encoder_norms": Layout(("stem.mean",), ((2,),)),
    "decoder_norms": Layout(("norm.mean",), ((2,),)),
}
# Encoders of other sizes; decoders fit all of them.
ENCODERS = {
    "wide": Layout(("stem.weight", "stem.bias"), ((4, 3), (4,))),
    "deep": Layout(("stem.weight", "block.weight", "last.weight"), ((2, 3), (2, 2), (2, 2))),
}
TASKS = {"outdoor": ("semseg", "sal", "edge"), "indoor": ("semseg", "depth")}

# The parts that each method shares: most share encoders alone.
WITH_DECODERS = ("fedavg", "fedprox", "ditto", "fedamp", "single_task_fl", "fedpull", "fedhca2", "fedavg_ft", "fedbn")
WITH_DECODERS += ("pfedgraph", "fedavgm", "fedadam", "fedyogi", "fedadagrad")
SHARED = {
    **{name: {"encoder"} for name in METHODS},
    **{name: {"encoder", "decoder"} for name in WITH_DECODERS},
    **{name: set() for name in ("local", "alone_longer", "pooled")},
}


@dataclass(frozen=True)
class Site:
    """A client as a scenario lists it."""

    dataset: str
    tasks: tuple[str, ...]
    encoder: str = "plain"

    def layout(self, slot):
        return ENCODERS.get(self.encoder, LAYOUTS["encoder"]) if slot.part == "encoder" else LAYOUTS[slot.part]


def slots_of(site):
    shared = [Slot("encoder"), Slot("encoder_norms")]
    return [*shared, *(Slot(part, task) for part in ("decoder", "decoder_norms", "head") for task in site.tasks)]


def random_rows(site, rng, scale=1.0):
    return {slot: scale * torch.randn(site.layout(slot).numel, generator=rng) for slot in slots_of(site)}


class ArrayFederation:
    """Clients by name, and a server; `run` returns the clients' rows."""

    def __init__(self, method, sites, seed=0, names=None):
        self.method, self.seed, self.sites = method, seed, sites
        rng = torch.Generator().manual_seed(seed)
        names = names or [f"c{i}" for i in range(len(sites))]
        self.clients = []
        for i, (name, site) in enumerate(zip(names, sites, strict=True)):
            rows = random_rows(site, rng)
            profile = Profile(name, site.dataset, site.tasks, 1 + i, {slot: site.layout(slot) for slot in rows})
            self.clients.append(ArrayClient(profile, rows))
        self.server = Server(method, [client.profile for client in self.clients])
        self.state = self.server.start()

    def replies(self, round):
        """Every client's reply after training; what it adds depends only on the seed and its number."""
        rng = torch.Generator().manual_seed(1000 * self.seed + round + 1)
        deltas = [random_rows(site, rng, 0.1) for site in self.sites]
        return [
            client.train(round, delta, self.server.uploads(client.profile.client, round))
            for client, delta in zip(self.clients, deltas, strict=True)
        ]

    def round(self, alter=lambda replies: replies):
        """Do one round; `alter` may change what the server sees."""
        replies = alter(self.replies(self.state.round))
        self.state, deliveries, self.record = Guard(self.server).step(self.state, replies)
        for client in self.clients:
            client.receive(deliveries.get(client.profile.client, {}))
        return deliveries

    def run(self, rounds):
        for _ in range(rounds):
            self.round()
        return [client.rows for client in self.clients]


@st.composite
def sites(draw, least=1):
    """Any mixture of data sets and task lists, in any order."""
    count = draw(st.integers(least, 5))
    listed = []
    for _ in range(count):
        dataset = draw(st.sampled_from(sorted(TASKS)))
        tasks = draw(st.lists(st.sampled_from(TASKS[dataset]), min_size=1, unique=True))
        listed.append(Site(dataset, tuple(tasks)))
    return listed


SCENARIOS = {
    "multi-task clients with different task counts": [
        Site("outdoor", ("semseg", "sal", "edge")),
        Site("indoor", ("semseg", "depth")),
        Site("outdoor", ("edge",)),
    ],
    "one data set with single-task and multi-task clients": [
        Site("outdoor", ("semseg",)),
        Site("outdoor", ("semseg", "edge")),
        Site("outdoor", ("edge",)),
    ],
    "the same tasks, not adjacent": [Site("indoor", ("depth",)), Site("outdoor", ("sal",)), Site("indoor", ("depth",))],
    "a single client": [Site("indoor", ("semseg", "depth"))],
    "one task for all": [Site("outdoor", ("semseg",))] * 4,
    "a client with every task": [
        Site("outdoor", TASKS["outdoor"]),
        Site("outdoor", ("sal",)),
        Site("indoor", ("depth",)),
    ],
    "two encoders, and one that nobody shares": [
        Site("outdoor", ("semseg",)),
        Site("indoor", ("semseg", "depth"), "wide"),
        Site("outdoor", ("sal",)),
        Site("outdoor", ("edge",), "wide"),
        Site("outdoor", ("semseg",), "deep"),
    ],
}
