"""A server that asks for whatever it likes: it has a SuperLink's secret, and sites cannot tell."""

from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path

import torch
from deployment import wait_for
from flwr.app import Message

from fedhca2.experiment import Experiment
from fedhca2.federation.flower.deploy.consent import Invitation, expected_profile
from fedhca2.federation.flower.deploy.superlink import SuperLink
from fedhca2.federation.flower.records import CANNOT, encode_orders, header_of, pack, to_rows
from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot

STOCK, THRIFTY = "home", "thrifty"  # a site that says as little as it can, and one with a budget
PATIENCE = 120.0  # seconds
ENCODER = Slot("encoder")
PRIVATE = "private"  # an honest run that is over; SECRET is its model
DEEP = "[" * 200_000 + "]" * 200_000


@dataclass
class Server:
    """Sends requests to sites, and records their answers."""

    grid: object
    experiment: Experiment
    secret: str
    code: str
    rounds: dict[str, int] = field(default_factory=dict)  # the next one of each run

    def invite(self, run: str, **changes) -> dict:
        """The header of an invitation, with changed values under keys such as model__encoder__weights."""
        values = vars(Invitation.for_experiment(self.experiment, run))
        for key, value in changes.items():
            *path, last = key.split("__")
            part = values["experiment"]
            for step in path:
                part = part[step]
            part[last] = value
        return values

    def ask(self, content, site: str = STOCK) -> dict:
        """A site's answer."""
        node = wait_for(lambda: next((one for one in self.grid.get_nodes() if one.name == site), None), PATIENCE)
        sent = self.grid.push_messages([Message(content, node.node_id, "train", ttl=PATIENCE)])
        [reply] = wait_for(lambda: list(self.grid.pull_messages(sent)), PATIENCE)
        return {"error": reply.error.reason} if reply.has_error() else self._summary(reply)

    def introduce(self, site: str = STOCK, **changes) -> dict:
        """A site's answer to an invitation to a changed experiment."""
        return self.ask(pack(self.invite("other", **changes)), site)

    def order(self, run: str, site: str = STOCK, deliveries=None, invitation=None, **changes) -> dict:
        """A site's answer to the next order of a run."""
        round = self.rounds.get(run, 0)
        upload = {} if changes.get("finish") else self.experiment.resolved_method.uploads(round)
        order = Order(**{"round": round, "deliveries": deliveries or {}, "upload": upload, **changes})
        header = {**(invitation or self.invite(run)), "wire": "float32"}
        answer = self.ask(encode_orders({site: order}, "float32", {site: header})[site], site)
        if "cannot" not in answer:
            self.rounds[run] = round + 1
        return answer

    def row(self, value: float, slot: Slot = ENCODER) -> torch.Tensor:
        spec = next(spec for spec in self.experiment.specs if spec.name == STOCK)
        return torch.full((expected_profile(self.experiment, spec).layouts[slot].numel,), value)

    def _summary(self, reply: Message) -> dict:
        header = header_of(reply.content)
        if CANNOT in header:
            return {"cannot": header[CANNOT]}
        rows, numbers = to_rows(reply.content), ("slots", "agreement", "losses", "metrics", "failed", "declined")
        finite = all(bool(row.isfinite().all()) for row in rows.values())
        summary = {key: header[key] for key in numbers if key in header}
        return {**summary, "values": len(rows.get("own", ())), "finite": finite}


def by_agreement(server: Server) -> dict:
    """Inner products with the head's update would reveal it, one by one."""
    head = Slot("head", "depth")
    remembered = Delivery("trained", (Addend(server.row(1e-3, head), (0.0,), remember=True),))
    return server.order("planted", deliveries={head: remembered})


def many_updates(server: Server) -> dict:
    """Ask in one run, and then in another, until nothing comes."""
    for _ in range(3):
        server.order("spend", THRIFTY)
    return server.order("spendagain", THRIFTY)


def finish(server: Server, run: str, site: str = STOCK, rounds: int = 1) -> dict:
    """A run of one round, to its end."""
    invitation = server.invite(run, rounds=rounds)
    server.order(run, site, invitation=invitation)
    return server.order(run, site, invitation=invitation, finish=True, evaluate=True, train=False)


def introduce(**changes):
    return lambda server: server.introduce(**changes)


def order(**changes):
    return lambda server: server.order("planted", **changes)


def plant(value: float, base: str = "trained", scale: float = 1.0):
    """Send a row of one value."""

    def play(server: Server) -> dict:
        return server.order("planted", deliveries={ENCODER: Delivery(base, (Addend(server.row(value), (scale,)),))})

    return play


UPDATES = {"encoder": "updates", "decoder": "updates"}
FILES = {"kind": "lists", "file": "/etc/passwd"}
# By words in the answer which show that the attack failed: how to carry it out.
REFUSED = {
    "(weights in site.yaml)": {
        "another run's model for first weights": lambda server: server.introduce(model__encoder__weights=server.secret),
        "a password file for first weights": introduce(model__encoder__weights="/etc/passwd"),
        "weights of a hub": introduce(model__encoder__weights="timm"),
    },
    "(encoders in site.yaml)": {
        "an encoder of a hub": introduce(model__encoder__name="hf-hub:eve/encoder"),
        "an encoder in a folder": lambda server: server.introduce(
            model__encoder__name=f"local-dir:{Path(server.secret).parent}"
        ),
    },
    "(methods in site.yaml)": {
        "a method that runs code": lambda server: server.introduce(method={"name": f"{server.code}:METHOD"})
    },
    "(data.root in site.yaml)": {"a folder for data": introduce(data__indoor__root="/etc")},
    "(data.partition in site.yaml)": {"a file for the list of images": introduce(data__indoor__partition=FILES)},
    "the message cannot be read": {
        "a header nested 200,000 deep": lambda server: server.ask(_raw('{"run": ' + DEEP + "}"))
    },
    "(share in site.yaml)": {
        "a method that shares heads": introduce(method__head={"kind": "group_mean"}),
        "heads in an order": order(upload={**UPDATES, "head": "updates"}),
        "a head by its products": by_agreement,
    },
    "this site does not allow it; its log": {
        "parameters for updates": order(upload={**UPDATES, "encoder": "parameters"}),
        "scores before the end": order(finish=True, evaluate=True, train=False),
    },
    "scores stay at the site: it sends final": {"scores in every round": order(evaluate=True)},
    "scores stay at the site: it sends none": {
        "scores of a site with a budget": lambda server: finish(server, "told", THRIFTY)
    },
    "the privacy budget is spent": {"more updates than a budget allows": many_updates},
    "expected finite rows": {"rows of NaN": plant(nan), "rows of infinity": plant(inf), "rows of 3e38": plant(3e38)},
    "expected rows at most": {"rows of 1e6": plant(1e6), "rows of 1e6 in place of its own": plant(1e6, "nothing")},
    "expected a finite scale": {"a scale of NaN": plant(1e-3, scale=nan), "a scale of 1e300": plant(1e-3, scale=1e300)},
}
ATTACKS = {name: play for plays in REFUSED.values() for name, play in plays.items()}
ANSWERS = {name: answer for answer, plays in REFUSED.items() for name in plays}


def _raw(text: str):
    content = pack({})
    content["header"]["json"] = text
    return content


def play(link: SuperLink, experiment: Experiment, secret: Path, code: Path) -> dict[str, dict]:
    """The sites' answers to all attacks, one after another, between honest rounds.

    `secret` is a file at the sites that is none of the server's business, `code` one that should not run.
    """
    with link.run() as grid:
        server = Server(grid, experiment, str(secret), str(code))
        answers = {"at first": finish(server, PRIVATE)}
        server.order("planted")
        for name, attack in ATTACKS.items():
            try:
                answers[name] = attack(server)
            except Exception as error:
                answers[name] = {"error": f"{type(error).__name__}: {error}"}
        return {**answers, "at last": server.order("planted")}
