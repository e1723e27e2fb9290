"""The ClientApp: handles a Flower message at a site and returns the site's answer."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhca2.clients.state_file import RoundIsOverError
from fedhca2.cores import one_per_core
from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.consent import Invitation, RefusalError
from fedhca2.federation.flower.deploy.secagg_site import LargeValueError, SumRefusedError
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.flower.records import (
    CANNOT,
    STAGE,
    MalformedMessageError,
    Wire,
    decode_order,
    encode_profile,
    encode_reply,
    header_of,
    pack,
)
from fedhca2.federation.foreign_text import plain

SITE_KEY = "site"  # in the node config: the path of the site's file
PARTITION_KEY = "partition-id"  # what a simulation has instead
# What the server is told of each kind of error. Messages of errors name files, columns and values, and stay in the log.
SENTENCES: Mapping[type[Exception], str] = {
    UserError: "the experiment does not fit the settings or data of this site",
    RoundIsOverError: "the round is over at this site",
    MalformedMessageError: "the message cannot be read",
    SumRefusedError: "this site does not help to add up rows in this way (sums in site.yaml)",
    LargeValueError: "a value of its row is larger than secure_aggregation.clip",
    MemoryError: "this site has too little memory",
    torch.OutOfMemoryError: "this site has too little memory",
    OSError: "this site cannot read or write a file",
}
log = logging.getLogger("fedhca2.site")


def answer(site: Site, message: Message) -> Message:
    """Answer any message of the server. A site that cannot do what it is asked says so, and its log says why."""
    return _answer_any(lambda: site, message)


def _answer_any(find_site: Callable[[], Site], message: Message) -> Message:
    try:
        site, header = find_site(), header_of(message.content)
        if "refused" in header:
            log.error("the server refuses this site: %s", plain(str(header["refused"])))
            return Message(pack({}), reply_to=message)
        with one_per_core(site.config.turns) if site.config.turns else nullcontext():
            return _answer(site, message, header)
    except Exception as error:  # whatever happens, the site continues, and the server is told
        expected = isinstance(error, UserError | RoundIsOverError)
        why = "; ".join(map(plain, str(error).splitlines()))
        log.error("cannot take part: %s", why, exc_info=None if expected else error)
        return Message(pack({CANNOT: as_told(error)}), reply_to=message)


def _answer(site: Site, message: Message, header: Mapping[str, Any]) -> Message:
    if "experiment" not in header:  # a server that knows nobody's key asks first who this is
        return Message(pack({"client": site.config.client}), reply_to=message)
    invitation = Invitation.read(header)
    profile = site.describe(invitation)
    if STAGE in header:
        content = site.aggregate(invitation, str(header[STAGE]), header["round"], header["request"])
        return Message(content, reply_to=message)
    if "order" not in header:
        return Message(encode_profile(profile), reply_to=message)
    wire = header["wire"]
    if wire not in get_args(Wire):
        raise UserError([f"wire: should be one of {', '.join(get_args(Wire))}, found {wire!r}"])
    order = decode_order(message.content, profile.layouts)
    log.info("round %d of %s as %s", order.round + 1, plain(str(invitation.experiment["name"])), profile.client)
    reply = site.seen(invitation, order)
    return Message(encode_reply(reply, wire, keys=site.keys(invitation, order)), reply_to=message)


def as_told(error: Exception) -> str:
    """What the server is told of an error: a fixed sentence, and which settings of the site refuse something.

    >>> as_told(FileNotFoundError("/data/ward 7/Anna Smith, 1962.png"))
    'this site cannot read or write a file; its log says more'
    """
    if isinstance(error, RefusalError):
        keys = f" ({', '.join(error.keys)} in site.yaml)" if error.keys else ""
        return f"this site does not allow it{keys}; its log says more"
    kinds = (sentence for kind, sentence in SENTENCES.items() if isinstance(error, kind))
    return f"{next(kinds, 'an unexpected error at this site')}; its log says more"


def make_app(site: Site | None = None, files: Sequence[Path] = ()) -> ClientApp:
    """An app for one site, for the site whose file the node config names, or for one that a simulation numbers."""
    app = ClientApp()
    sites: dict[Path, Site] = {}

    def find(context: Context) -> Site:
        if site is not None:
            return site
        path = _file(context, files)
        if path not in sites:
            sites[path] = Site(SiteConfig.load(path))
        return sites[path]

    def handle(message: Message, context: Context) -> Message:
        return _answer_any(lambda: find(context), message)

    app.query()(handle)
    app.train()(handle)
    return app


def _file(context: Context, files: Sequence[Path]) -> Path:
    if files and PARTITION_KEY in context.node_config:
        return files[int(context.node_config[PARTITION_KEY])]
    if SITE_KEY not in context.node_config:
        raise UserError([f'--node-config: should have {SITE_KEY}="FILE.yaml", found {[*context.node_config]}'])
    return Path(str(context.node_config[SITE_KEY]))


app = make_app()
