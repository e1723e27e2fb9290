"""Clients of secure aggregation as plain functions: rows in, sums out, and everything the server saw."""

import json

import numpy as np
import torch

from fedhca2.experiment import SecureAggregation
from fedhca2.federation.flower.answers import SiteAnswer
from fedhca2.federation.flower.deploy.secagg_server import SecureSum
from fedhca2.federation.flower.deploy.secagg_site import Secrets, SumMember, new_keys
from fedhca2.federation.flower.deploy.site_config import SiteSums
from fedhca2.federation.sum_server import Sum
from fedhca2.params import Slot

ENCODER = Slot("encoder")


class Clients:
    """Each has one row. `absent` names the stage from which a client is silent; `spoiled` changes answers."""

    def __init__(self, rows, absent=None, spoiled=None, rules=None, equal=(), **settings):
        self.rules, self.equal = rules or SiteSums(rows=2), equal
        self.rows, self.settings = rows, SecureAggregation(**settings)
        self.absent, self.spoiled = absent or {}, spoiled or {}
        self.secrets = {name: Secrets() for name in rows}
        self.gone = set()
        self.seen = []  # (stage, client, header, masked values)

    def answer(self, name, stage, request):
        if stage == self.absent.get(name):
            self.gone.add(name)
        if name in self.gone:
            raise ConnectionError("not there")
        row = {ENCODER: self.rows[name]}
        member = SumMember(self.secrets[name], name, self.settings, self.rules, self.equal, lambda: row)
        header, masked = member.answer(stage, 0, request)
        self.secrets[name] = Secrets.model_validate_json(member.secrets.model_dump_json())  # as from its file
        return self.spoiled.get((name, stage), lambda *same: same)(dict(header), masked)

    def ask(self, stage, requests, read, least, values):
        heard, away = {}, {}
        for name, request in requests.items():
            try:
                header, masked = self.answer(name, stage, json.loads(json.dumps(request)))
                self.seen.append((stage, name, header, masked))
                rows = None if masked is None else torch.from_numpy(masked.copy().view(np.int32))
                heard[name] = read(SiteAnswer(json.loads(json.dumps(header)), rows))
            except (ConnectionError, ValueError, KeyError) as error:
                away[name] = str(error)
        return heard, away

    def add(self, *sums):
        public = {}
        for name in self.rows:
            self.secrets[name], keys = new_keys(self.secrets[name], 0)
            public[name] = tuple(keys)
        return SecureSum(self.settings, self.ask, public, sums).add()


def summing(weights, numel):
    """A sum of encoders with these weights."""
    return Sum({name: {ENCODER: weight} for name, weight in weights.items()}, numel)
