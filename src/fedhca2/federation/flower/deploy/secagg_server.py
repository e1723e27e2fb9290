"""The server's part of secure aggregation: three stages of messages, and sums that reveal no row.

SecAgg (Bonawitz et al. 2017) in the stages of Flower's SecAgg+, with all clients of a round as neighbours. The first
stage, new keys, comes with every client's reply.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, islice
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from pydantic import Field, TypeAdapter
from torch import Tensor

from fedhca2.config import Config
from fedhca2.experiment import SecureAggregation
from fedhca2.federation.flower.answers import SiteAnswer
from fedhca2.federation.flower.deploy import secagg_site
from fedhca2.federation.flower.deploy.secagg_site import Whole
from fedhca2.federation.flower.internals import bytes_to_public_key
from fedhca2.federation.flower.wait import by_reason
from fedhca2.federation.sum_server import Sum, Summed

log = logging.getLogger("fedhca2.server")

T = TypeVar("T")
Requests = Mapping[str, Mapping[str, Any]]  # by client
Read = Callable[[SiteAnswer], T]  # reads an answer; raises ValueError if it is unusable
# Sends clients the requests of a stage, and returns their answers, and why others did not answer. Besides them it takes
# how many answers make it useless to wait for clients that are offline, and how many masked values each answer has.
Ask = Callable[[str, Requests, Read[Any], int, Mapping[str, int]], tuple[dict[str, Any], dict[str, str]]]


class NoSumError(Exception):
    """Nothing can be unmasked, and no one has learned anything."""


class _FaultyError(Exception):
    """Clients whose secrets could not be recovered, with the reasons."""


Text = Annotated[str, Field(max_length=2048)]  # a key or a share


class _Shared(Config):
    """A client's answer in the second stage."""

    shares: dict[str, Text]  # encrypted for each of the others
    seed: Text  # the commitment to its seed


class _Opened(Config):
    """A client's answer in the last stage: shares of others' secrets."""

    seeds: dict[str, Text]
    keys: dict[str, Text]


class SecureSum:
    """One pass through the stages, for one round."""

    def __init__(
        self, settings: SecureAggregation, ask: Ask, public: Mapping[str, tuple[str, str]], sums: Sequence[Sum]
    ) -> None:
        """`public` are the keys that clients sent with their replies."""
        self.settings, self.ask, self.public, self.sums = settings, ask, public, sums
        self.away: dict[str, str] = {}  # why clients dropped out

    def add(self) -> Summed:
        """The sums of the rows that arrive in time."""
        clients = sorted({client for each in self.sums for client in each.weights})
        try:
            stayed, rows = self._add(clients)
        except NoSumError as error:
            log.warning("no sum in this round: %s", error)
            stayed, rows = set(), [None] * len(self.sums)
            self.away = dict.fromkeys(clients, f"no sum: {error}") | self.away
        return Summed(rows, {client: self.away[client] for client in clients if client not in stayed})

    def _add(self, clients: Sequence[str]) -> tuple[set[str], list[Tensor | None]]:
        """Add up, and once more without the clients whose shares others cannot read, with new keys for the rest.

        Rows that were masked for an abandoned sum stay hidden, since its keys and seeds are gone.
        """
        public = {client: self.public[client] for client in clients if client in self.public}
        self.away |= {client: "it sent no keys" for client in clients if client not in public}
        least = self.settings.least(len(public))
        while True:
            try:
                return self._attempt(public, self.settings.least(len(public)))
            except _FaultyError as error:
                [faulty] = error.args
                log.warning("adding up once more without %s", by_reason(faulty))
                self.away |= faulty
                public = {client: keys for client, keys in public.items() if client not in faulty}
            if len(public) < least:
                raise NoSumError(f"expected {least} clients that stay, got {len(public)}; {by_reason(self.away)}")
            public = self._stage(secagg_site.KEYS, {client: {} for client in public}, read_keys, least)

    def _attempt(self, public: Mapping[str, tuple[str, str]], least: int) -> tuple[set[str], list[Tensor | None]]:
        """One pass through the stages; raises _FaultyError if a client's secrets could not be recovered."""
        requests = {client: {"keys": public} for client in public}
        shared = self._stage(secagg_site.SHARE, requests, lambda answer: _Shared.model_validate(answer.header), least)
        among = [
            Sum({client: own for client, own in each.weights.items() if client in shared}, each.numel)
            for each in self.sums
        ]
        needed = {number: each for number, each in enumerate(among) if len(each.weights) > 1}
        masked = self._ask_masked(shared, list(needed.values()), least)
        stayed = self._without_lone(set(masked), list(needed.values()), least)
        seeds, keys = self._secrets(public, shared, stayed, least)
        rows: list[Tensor | None] = [None] * len(self.sums)
        for position, (number, each) in enumerate(needed.items()):
            if members := sorted(stayed & set(each.weights)):
                total = np.zeros(each.numel, np.uint32)
                for client in members:
                    total += masked[client].pop(0)
                    total -= secagg_site.mask(seeds[client], position, each.numel)
                    for absent in set(each.weights) & set(keys):
                        secret = secagg_site.agree(keys[absent].decode(), public[client][0])
                        secagg_site.add_pair(total, secret, position, client < absent)
                rows[number] = self._row(number, each, total, members)
        return stayed, rows

    def _secrets(
        self, public: Mapping[str, tuple[str, str]], shared: Mapping[str, _Shared], stayed: set[str], least: int
    ) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """The seeds of the clients that stayed, and the keys of those that dropped out."""
        split = {"stayed": sorted(stayed), "dropped": sorted(set(shared) - stayed)}
        requests = dict.fromkeys(split["stayed"], split)
        opened = self._stage(secagg_site.UNMASK, requests, lambda answer: _Opened.model_validate(answer.header), least)
        seeds, keys = [each.seeds for each in opened.values()], [each.keys for each in opened.values()]
        seal, public_of = secagg_site.commitment, lambda key: secagg_site.public_of(key.decode())
        return (
            {client: _recover(client, seeds, least, seal, shared[client].seed) for client in split["stayed"]},
            {client: _recover(client, keys, least, public_of, public[client][0]) for client in split["dropped"]},
        )

    def _ask_masked(self, shared: Mapping[str, _Shared], needed: Sequence[Sum], least: int) -> dict[str, list[Whole]]:
        """Every client's masked numbers, for each of its sums.

        Raises _FaultyError if fewer clients than needed can read a client's shares, including its own.
        """
        sums = [
            {client: {str(slot): weight for slot, weight in own.items()} for client, own in each.weights.items()}
            for each in needed
        ]
        sizes = {client: [each.numel for each in needed if client in each.weights] for client in shared}
        requests = {
            client: {
                "sums": sums,
                "shares": {other: sent.shares.get(client, "") for other, sent in shared.items() if other != client},
            }
            for client in shared
            if sizes[client]
        }
        self.away |= {client: "all others of its sum have dropped out" for client in shared if client not in requests}
        numel = {client: sum(each) for client, each in sizes.items()}
        answers = self._stage(secagg_site.MASK, requests, _read_masked_rows, least, numel)
        cannot = {client: [other for other, (_, those) in answers.items() if client in those] for client in shared}
        faulty = {client: others for client, others in cannot.items() if others and len(answers) - len(others) < least}
        if faulty:
            reasons = {client: f"{', '.join(others)} cannot read its shares" for client, others in faulty.items()}
            raise _FaultyError(reasons)
        return {client: np.split(values, np.cumsum(sizes[client])[:-1]) for client, (values, _) in answers.items()}

    def _without_lone(self, stayed: set[str], sums: Sequence[Sum], least: int) -> set[str]:
        """The clients that stayed, without those that are alone in a sum: their masks cannot be removed."""
        while lone := {client for each in sums if len(left := stayed & set(each.weights)) == 1 for client in left}:
            self.away |= dict.fromkeys(lone, "all others of a sum have dropped out")
            stayed = stayed - lone
        if len(stayed) < least:
            raise NoSumError(f"expected {least} clients that stay, got {len(stayed)}")
        return stayed

    def _row(self, number: int, each: Sum, total: Whole, members: Sequence[str]) -> Tensor:
        """The sum, scaled as if those that stayed had the weights of all."""
        try:
            added = secagg_site.Steps(self.settings.clip, len(each.weights)).sum_of(total, len(members))
        except ValueError as error:
            raise NoSumError(str(error)) from None
        scale = self.sums[number].total(self.sums[number].weights) / each.total(members)
        return torch.from_numpy(added * (secagg_site.largest(each.weights) * scale)).float()

    def _stage(
        self, stage: str, requests: Requests, read: Read[T], least: int, values: Mapping[str, int] | None = None
    ) -> dict[str, T]:
        """The clients' answers; raises NoSumError if there are too few."""
        answers, away = self.ask(stage, requests, read, least, values or {})
        self.away |= away
        if len(answers) < least:
            raise NoSumError(f"expected {least} clients that answer to '{stage}', got {len(answers)}")
        return answers


def _recover(
    client: str, opened: Iterable[Mapping[str, str]], least: int, mark: Callable[[bytes], str], expected: str
) -> bytes:
    """Recover a client's secret with the expected mark from shares, some perhaps forged; tries a hundred choices."""
    shares = [each[client] for each in opened if client in each]
    if len(shares) < least:
        raise NoSumError(f"expected {least} shares of {client}'s secret, got {len(shares)}")
    for some in islice(combinations(shares, least), 100):
        with suppress(Exception):  # combining forged shares may raise anything
            secret: bytes = combine_shares([bytes.fromhex(share) for share in some])
            if mark(secret) == expected:
                return secret
    raise NoSumError(f"shares of {client}'s secret: expected those of its commitment, got others")


def read_keys(answer: SiteAnswer) -> tuple[str, str]:
    """The two public keys that came with a reply; raises ValueError if other sites could not use them."""
    agreed, read = TypeAdapter(tuple[Text, Text]).validate_python(answer.header["keys"])
    for key in (agreed, read):
        public = bytes_to_public_key(key.encode())
        if not isinstance(public, EllipticCurvePublicKey) or not isinstance(public.curve, SECP384R1):
            raise ValueError("keys: expected the curve P-384, got others")
    if agreed == read:
        raise ValueError("keys: expected two, got one twice")
    return agreed, read


def _read_masked_rows(answer: SiteAnswer) -> tuple[Whole, frozenset[str]]:
    """The masked numbers of a client, and whose shares it cannot read."""
    if answer.rows is None:
        raise ValueError("expected masked rows, got none")
    unreadable = TypeAdapter(frozenset[Text]).validate_python(answer.header.get(secagg_site.UNREADABLE, []))
    return answer.rows.numpy().view(np.uint32), unreadable
