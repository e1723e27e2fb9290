"""A site's part of secure aggregation: its keys and masks for one sum, and its answers in the stages of SecAgg.

Rows become integers that add up without loss, hidden by masks until they are added.

Keys, agreement, encryption and shares are Flower's; see docs/decisions/0011. Masks are ours.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat, share_keys_plaintext_separate
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedhca2.clients.state_file import RoundIsOverError
from fedhca2.config import Config
from fedhca2.experiment import SecureAggregation
from fedhca2.federation.flower import internals
from fedhca2.federation.flower.deploy.site_config import SiteSums
from fedhca2.params import Slot
from fedhca2.whole_files import write_whole

Whole = NDArray[np.uint32]
KEY_BYTES = 32
Request = Mapping[str, Any]
Weights = Mapping[str, Mapping[str, float]]  # of a sum, by client and slot
KEYS, SHARE, MASK, UNMASK = "keys", "share", "mask", "unmask"  # the first, new keys, usually comes with a reply
UNREADABLE = "unreadable"  # in the header of masked rows: whose shares could not be read


class LargeValueError(ValueError):
    """A row has a value that is larger than the clip, or that is not a number."""


@dataclass(frozen=True)
class Steps:
    """Values from −clip to clip in equal steps, so fine that the numbers of all members fill half of the range.

    A result in the other half is not a sum, so wrong masks are noticed.

    >>> steps = Steps(clip=1.0, members=3)
    >>> steps.sum_of(steps.whole(np.array([0.5])) + steps.whole(np.array([-0.25])), 2).round(6)
    array([0.25])
    """

    clip: float
    members: int

    @property
    def count(self) -> int:
        """The number of steps from −clip to clip."""
        return 2**31 // self.members

    @property
    def size(self) -> float:
        """The size of one step; rounding errors are at most half of it."""
        return 2 * self.clip / self.count

    def whole(self, values: NDArray[Any]) -> Whole:
        """Round to the nearest steps; raises LargeValueError if a value is too large."""
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= self.clip:  # also if it is NaN
            expected = f"values of at most {self.clip:g} (secure_aggregation.clip)"
            raise LargeValueError(f"rows: expected {expected}, got {largest:g}")
        return np.rint((values.astype(np.float64) + self.clip) / self.size).astype(np.uint32)

    def sum_of(self, total: Whole, members: int) -> NDArray[np.float64]:
        """The sum of this many members' steps; raises ValueError if it is impossible."""
        if int(total.max(initial=0)) > members * self.count:
            raise ValueError("a sum: expected values within the clip, got one beyond: a client sent an invalid row")
        return total.astype(np.float64) * self.size - members * self.clip


def mask(secret: bytes, number: int, size: int) -> Whole:
    """The mask of a sum: ChaCha20 with a key derived from the secret, so that each of 2³² numbers is equally likely."""
    key = blake2b(secret, digest_size=KEY_BYTES, salt=number.to_bytes(16, "little"), person=b"fedhca2 mask").digest()
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * size))
    return np.frombuffer(stream, "<u4")


class SumRefusedError(ValueError):
    """The server asks for something that could reveal a row."""


class Secrets(Config):
    """What a site knows of one sum, in its own file, so that it can crash between two stages and continue."""

    round: int = -1
    agreeing: str = ""  # the private key for agreeing on masks
    reading: str = ""  # the private key for decrypting shares
    seed: str = ""  # of its own mask
    public: dict[str, tuple[str, str]] = Field(default_factory=dict)  # of all that take part, including itself
    sent: dict[str, str] = Field(default_factory=dict)  # shares of its seed and agreeing key, encrypted for others
    held: dict[str, tuple[str, str]] = Field(default_factory=dict)  # shares of others' seeds and keys, and of its own
    members: tuple[str, ...] = ()  # who has shared its keys, and may send rows
    sums: tuple[dict[str, dict[str, float]], ...] = ()  # the sums that it has masked its rows for
    unreadable: tuple[str, ...] = ()  # whose shares it could not read
    told: tuple[int, str] = (-1, "")  # the last round that it helped to unmask, and for which sums and clients

    @classmethod
    def load(cls, path: Path) -> "Secrets":
        """Load the secrets from a file; without a file, new ones without keys."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls()

    def save(self, path: Path) -> None:
        """Write them, readable only by the owner."""
        write_whole(path, self.model_dump_json().encode())


def new_keys(secrets: Secrets, round: int) -> tuple[Secrets, list[str]]:
    """Replace all keys and return the public ones: a key masks only once."""
    (agreeing, agreed), (reading, read) = internals.generate_key_pairs(), internals.generate_key_pairs()
    fresh = Secrets(
        round=round,
        agreeing=internals.private_key_to_bytes(agreeing).decode(),
        reading=internals.private_key_to_bytes(reading).decode(),
        seed=token_bytes(KEY_BYTES).hex(),
        told=secrets.told,
    )
    return fresh, [internals.public_key_to_bytes(key).decode() for key in (agreed, read)]


@dataclass
class SumMember:
    """A site in one sum. It answers each stage once, and the same again if it is asked the same again.

    `rows` reads those of its last reply.
    """

    secrets: Secrets
    name: str
    settings: SecureAggregation
    rules: SiteSums
    equal: Collection[str]  # parts whose rows all have the same weight
    rows: Callable[[], Mapping[Slot, Tensor]]

    def answer(self, stage: str, round: int, request: Request) -> tuple[Request, Whole | None]:
        """The answer to the request of a stage, with masked rows if it asks for them."""
        if stage == KEYS:  # to add up once more, without a client whose shares cannot be read
            self.secrets, keys = new_keys(self.secrets, round)
            return {"keys": keys}, None
        if self.secrets.round != round:
            raise RoundIsOverError(f"keys of {self.name}: expected those of {round}, got those of {self.secrets.round}")
        if stage == MASK:
            masked = self.mask(request)
            return {UNREADABLE: list(self.secrets.unreadable)}, masked
        return (self.share if stage == SHARE else self.unmask)(request), None

    def share(self, request: Request) -> Request:
        """Make shares of the seed and of the agreeing key, one for each client that takes part."""
        secrets = self.secrets
        public = {client: (str(agreed), str(read)) for client, (agreed, read) in sorted(request["keys"].items())}
        if secrets.public not in ({}, public):
            raise SumRefusedError("keys: expected one request to share them, got a second with others")
        if not secrets.public:
            own = public_of(secrets.agreeing), public_of(secrets.reading)
            keys = {key for pair in public.values() for key in pair}
            if public.get(self.name) != own or len(keys) != 2 * len(public) or len(public) < 2:
                expected = "different ones of two or more clients, among them this site's own"
                raise SumRefusedError(f"keys: expected {expected}, got others")
            least, position = self.settings.least(len(public)), [*public].index(self.name)
            seed_shares = create_shares(bytes.fromhex(secrets.seed), least, len(public))
            key_shares = create_shares(secrets.agreeing.encode(), least, len(public))
            sent = {}
            for number, (client, (_, read)) in enumerate(public.items()):
                text = share_keys_plaintext_concat(position, number, seed_shares[number], key_shares[number])
                sent[client] = encrypt(agree(secrets.reading, read), text).decode()
            del sent[self.name]
            held = {self.name: (seed_shares[position].hex(), key_shares[position].hex())}
            self._update(public=public, sent=sent, held=held)
        return {"shares": self.secrets.sent, "seed": commitment(bytes.fromhex(self.secrets.seed))}

    def mask(self, request: Request) -> Whole:
        """The masked rows, concatenated: this site's part of each of the sums."""
        secrets = self.secrets
        sums = tuple({client: dict(own) for client, own in weights.items()} for weights in request["sums"])
        members = tuple(sorted({self.name, *request["shares"]}))
        if secrets.members and (secrets.members, secrets.sums) != (members, sums):
            raise SumRefusedError("rows: expected one request to mask them, got a second with other sums")
        if not secrets.members:
            if len(members) < self._least or not set(members) <= set(secrets.public):
                expected = f"{self._least} or more clients that shared their keys"
                raise SumRefusedError(f"expected {expected}, got {len(members)}")
            own = [slot for weights in sums for slot in weights.get(self.name, {})]
            if len(set(own)) < len(own):
                raise SumRefusedError("a row: expected one sum, got several")
            if any(len(weights) < 2 or not set(weights) <= set(members) for weights in sums):
                raise SumRefusedError("a sum: expected two or more of the clients that take part, got others")
            self._check_weights(sums, members)
            opened = self._open(request["shares"])
            unreadable = tuple(client for client in members if client not in (self.name, *opened))
            self._update(held=secrets.held | opened, members=members, sums=sums, unreadable=unreadable)
        rows = self.rows()
        masked = [self._mask_rows(number, rows) for number, each in enumerate(sums) if self.name in each]
        return np.concatenate(masked) if masked else np.empty(0, np.uint32)

    def unmask(self, request: Request) -> Request:
        """The share of the seed of each client that stayed, and of the key of each that dropped out; never both."""
        secrets, stayed, dropped = self.secrets, sorted(set(request["stayed"])), sorted(set(request["dropped"]))
        if not secrets.members or set(stayed) & set(dropped) or {*stayed, *dropped} != set(secrets.members):
            raise SumRefusedError(
                "clients: expected each client among those that stayed or those that dropped out, got another list"
            )
        if len(stayed) < self._least or self.name not in stayed:
            raise SumRefusedError(f"expected {self._least} clients that stay, got {len(stayed)}")
        if any(len(set(weights) & set(stayed)) == 1 for weights in secrets.sums):
            raise SumRefusedError("a sum: expected two or more clients that stayed, got one that is a row")
        self._check_weights(secrets.sums, stayed)
        summary = commitment(json.dumps([secrets.sums, stayed], sort_keys=True).encode())
        if secrets.told[0] == secrets.round and secrets.told[1] != summary:  # their difference would reveal a row
            raise SumRefusedError("rows: expected one sum in a round, got a second that differs")
        self._update(told=(secrets.round, summary))
        return {
            "seeds": {client: secrets.held[client][0] for client in stayed if client in secrets.held},
            "keys": {client: secrets.held[client][1] for client in dropped if client in secrets.held},
        }

    @property
    def _least(self) -> int:
        return self.settings.least(len(self.secrets.public))

    def _update(self, **changes: Any) -> None:
        self.secrets = self.secrets.model_copy(update=changes)

    def _check_weights(self, sums: Sequence[Weights], among: Collection[str]) -> None:
        """Raise SumRefusedError if a sum with this site's row, of the rows of some clients, could reveal a row.

        Where the method implies equal weights, others are refused; elsewhere no client may have more than `share` of
        the weight, since a sum with nearly all weight on one row is that row.
        """
        rows, most = self.rules.rows, self.rules.share
        for weights in (weights for weights in sums if self.name in weights):
            totals = {name: sum(own.values()) for name, own in weights.items() if name in among}
            values = [weight for own in weights.values() for weight in own.values()]
            if len(totals) < rows:
                raise SumRefusedError(f"a sum: expected {rows} or more clients (sums.rows), got {len(totals)}")
            if not all(type(weight) in (int, float) and 0 < weight < inf for weight in values):
                raise SumRefusedError("weights of a sum: expected finite ones above 0, got others")
            parts = {Slot.parse(slot).part for own in weights.values() for slot in own}
            if len(parts) != 1:
                raise SumRefusedError(f"a sum: expected rows of one part, got {sorted(parts)}")
            if parts <= {*self.equal}:
                if max(values) > min(values) * (1 + 1e-6):  # they may differ by rounding
                    raise SumRefusedError("weights of a sum: expected equal ones, as the method says, got others")
            elif (share := max(totals.values()) / sum(totals.values())) > most:
                raise SumRefusedError(f"a row: expected at most {most:g} of a sum (sums.share), got {share:g}")

    def _mask_rows(self, number: int, rows: Mapping[Slot, Tensor]) -> Whole:
        secrets, weights = self.secrets, self.secrets.sums[number]
        unit = largest(weights)
        scaled = [rows[Slot.parse(slot)].cpu().double().numpy() * (w / unit) for slot, w in weights[self.name].items()]
        masked = Steps(self.settings.clip, len(weights)).whole(np.asarray(sum(scaled)))
        masked += mask(bytes.fromhex(secrets.seed), number, len(masked))
        for client in (client for client in weights if client != self.name):
            add_pair(masked, agree(secrets.agreeing, secrets.public[client][0]), number, self.name > client)
        return masked

    def _open(self, shares: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Decrypt the shares that others sent, except those that cannot be read."""
        order, opened = [*self.secrets.public], {}
        for client, text in shares.items():
            with suppress(InvalidToken):
                plain = decrypt(agree(self.secrets.reading, self.secrets.public[client][1]), text.encode())
                source, target, seed, key = share_keys_plaintext_separate(plain)
                if (source, target) == (order.index(client), order.index(self.name)):
                    opened[client] = (seed.hex(), key.hex())
        return opened


def add_pair(masked: Whole, secret: bytes, number: int, plus: bool) -> None:
    """Add the mask that two clients agreed on, or subtract it: one client adds, the other subtracts."""
    agreed = mask(secret, number, len(masked))
    np.add(masked, agreed, out=masked) if plus else np.subtract(masked, agreed, out=masked)


def largest(weights: Mapping[str, Mapping[Any, float]]) -> float:
    """The largest weight of one client in a sum, which is 1 on the wire."""
    return max(sum(own.values()) for own in weights.values())


def commitment(secret: bytes) -> str:
    """Commit to a secret: reveals nothing of it, but shows whether another secret is the same."""
    return blake2b(secret, digest_size=KEY_BYTES, person=b"fedhca2 commit").hexdigest()


def agree(private: str, public: str) -> bytes:
    """Agree on the secret of two clients."""
    own, other = internals.bytes_to_private_key(private.encode()), internals.bytes_to_public_key(public.encode())
    return generate_shared_key(own, other)


def public_of(private: str) -> str:
    """The public key that belongs to a private one."""
    return internals.public_key_to_bytes(internals.bytes_to_private_key(private.encode()).public_key()).decode()
