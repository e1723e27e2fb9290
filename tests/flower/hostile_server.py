"""A server that asks for whatever it likes: it has a SuperLink's secret, and sites cannot tell."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path

import torch
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
        """The header of an invitation, with changed values at places such as model__encoder__weights."""
        values = Invitation.for_experiment(self.experiment, run).header()
        for key, value in changes.items():
            *path, last = key.split("__")
            place = values["experiment"]
            for step in path:
                place = place[step]
            place[last] = value
        return values

    def ask(self, content, site: str = STOCK) -> dict:
        """A site's answer."""
        node = self._node(site)
        [message] = self.grid.push_messages([Message(content, node, "train", ttl=PATIENCE)])
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for reply in self.grid.pull_messages([message]):
                if reply.has_error():
                    return {"error": reply.error.reason}
                return self._told(reply)
            time.sleep(0.3)
        raise TimeoutError(f"{site} should answer within {PATIENCE:g} s")

    def introduce(self, site: str = STOCK, **changes) -> dict:
        """A site's answer to an invitation to a changed experiment."""
        return self.ask(pack(self.invite("other", **changes)), site)

    def order(self, run: str, site: str = STOCK, deliveries=None, invitation=None, **changes) -> dict:
        """A site's answer to the next order of a run."""
        round = self.rounds.get(run, 0)
        upload = {} if changes.get("finish") else self.experiment.resolved_method.uploads(round)
        order = Order(**{"round": round, "deliveries": deliveries or {}, "upload": upload, **changes})
        contents = encode_orders(
            {site: order}, "float32", {site: {**(invitation or self.invite(run)), "wire": "float32"}}
        )
        answer = self.ask(contents[site], site)
        if "cannot" not in answer:
            self.rounds[run] = round + 1
        return answer

    def row(self, value: float, slot: Slot = ENCODER) -> torch.Tensor:
        spec = next(spec for spec in self.experiment.specs if spec.name == STOCK)
        return torch.full((expected_profile(self.experiment, spec).layouts[slot].numel,), value)

    def plant(self, value: float, base: str = "trained", scale: float = 1.0, slot: Slot = ENCODER, **rest) -> dict:
        """The stock site's answer when it is sent a row of one value."""
        return self.order(
            "planted", deliveries={slot: Delivery(base, (Addend(self.row(value, slot), (scale,)),))}, **rest
        )

    def _node(self, site: str) -> int:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for node in self.grid.get_nodes():
                if node.name == site:
                    return node.node_id
            time.sleep(0.2)
        raise TimeoutError(f"{site} should be there within {PATIENCE:g} s")

    def _told(self, reply: Message) -> dict:
        header = header_of(reply.content)
        if CANNOT in header:
            return {"cannot": header[CANNOT]}
        rows = to_rows(reply.content)
        kept = {
            key: header[key]
            for key in ("slots", "agreement", "losses", "metrics", "failed", "declined")
            if key in header
        }
        return {
            **kept,
            "values": len(rows.get("own", ())),
            "finite": all(bool(r.isfinite().all()) for r in rows.values()),
        }


@dataclass(frozen=True)
class Attack:
    """How to carry it out, and a word in the answer that shows that it failed."""

    play: Callable[[Server], dict]
    answer: str


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


ATTACKS = {
    "another run's model for first weights": Attack(
        lambda server: server.introduce(model__encoder__weights=server.secret), "(weights in site.yaml)"
    ),
    "a password file for first weights": Attack(
        lambda server: server.introduce(model__encoder__weights="/etc/passwd"), "(weights in site.yaml)"
    ),
    "weights of a hub": Attack(
        lambda server: server.introduce(model__encoder__weights="timm"), "(weights in site.yaml)"
    ),
    "an encoder of a hub": Attack(
        lambda server: server.introduce(model__encoder__name="hf-hub:eve/encoder"), "(encoders in site.yaml)"
    ),
    "an encoder in a folder": Attack(
        lambda server: server.introduce(model__encoder__name=f"local-dir:{Path(server.secret).parent}"),
        "(encoders in site.yaml)",
    ),
    "a method that runs code": Attack(
        lambda server: server.introduce(method={"name": f"{server.code}:METHOD"}), "(methods in site.yaml)"
    ),
    "a method that shares heads": Attack(
        lambda server: server.introduce(method__head={"kind": "group_mean"}), "(share in site.yaml)"
    ),
    "a folder for data": Attack(lambda server: server.introduce(data__indoor__root="/etc"), "(data.root in site.yaml)"),
    "a file for the list of images": Attack(
        lambda server: server.introduce(data__indoor__partition={"kind": "lists", "file": "/etc/passwd"}),
        "(data.partition in site.yaml)",
    ),
    "a header nested 200,000 deep": Attack(
        lambda server: server.ask(_raw('{"run": ' + DEEP + "}")), "the message cannot be read"
    ),
    "heads in an order": Attack(
        lambda server: server.order("planted", upload={"encoder": "updates", "decoder": "updates", "head": "updates"}),
        "(share in site.yaml)",
    ),
    "a head by its products": Attack(by_agreement, "(share in site.yaml)"),
    "parameters for updates": Attack(
        lambda server: server.order("planted", upload={"encoder": "parameters", "decoder": "updates"}),
        "this site does not allow it; its log",
    ),
    "scores in every round": Attack(
        lambda server: server.order("planted", evaluate=True), "scores stay at the site: it sends final"
    ),
    "scores before the end": Attack(
        lambda server: server.order("planted", finish=True, evaluate=True, train=False), "this site does not allow it"
    ),
    "scores of a site with a budget": Attack(
        lambda server: finish(server, "told", THRIFTY), "scores stay at the site: it sends none"
    ),
    "more updates than a budget allows": Attack(many_updates, "the privacy budget is spent"),
    "rows of NaN": Attack(lambda server: server.plant(nan), "expected finite rows"),
    "rows of infinity": Attack(lambda server: server.plant(inf), "expected finite rows"),
    "rows of 1e6": Attack(lambda server: server.plant(1e6), "expected rows at most"),
    "rows of 1e6 in place of its own": Attack(lambda server: server.plant(1e6, "nothing"), "expected rows at most"),
    "rows of 3e38": Attack(lambda server: server.plant(3e38), "expected"),
    "a scale of NaN": Attack(lambda server: server.plant(1e-3, scale=nan), "expected a finite scale"),
    "a scale of 1e300": Attack(lambda server: server.plant(1e-3, scale=1e300), "expected a finite scale"),
}  # fmt: skip


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
                answers[name] = attack.play(server)
            except Exception as error:
                answers[name] = {"error": f"{type(error).__name__}: {error}"}
        return {**answers, "at last": server.order("planted")}
