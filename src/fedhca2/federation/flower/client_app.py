"""The ClientApp: handles a Flower message at a site and returns the site's answer."""

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedhca2.cores import one_per_core
from fedhca2.errors import UserError
from fedhca2.federation.flower.invitation import Invitation
from fedhca2.federation.flower.records import (
    CANNOT,
    STAGE,
    Wire,
    decode_order,
    encode_profile,
    encode_reply,
    header_of,
    pack,
)
from fedhca2.federation.flower.site import RoundIsOverError, Site
from fedhca2.federation.flower.site_config import SiteConfig
from fedhca2.federation.foreign_text import plain

SITE_KEY = "site"  # in the node config: the path of the site's file
PARTITION_KEY = "partition-id"  # what a simulation has instead
PATH = re.compile(r"(?<![\w.])/[^\s:;,'\"]+(?: [^\s:;,'\"]*/[^\s:;,'\"]*)*")
log = logging.getLogger("fedhca2.site")


def answer(site: Site, message: Message) -> Message:
    """Answer any message of the server. A site that cannot do what it is asked says why."""
    try:
        header = header_of(message.content)
        if "refused" in header:
            log.error("the server refuses this site: %s", plain(str(header["refused"])))
            return Message(pack({}), reply_to=message)
        with one_per_core(site.config.turns) if site.config.turns else nullcontext():
            return _answer(site, message, header)
    except Exception as error:  # whatever happens, the site continues, and the server is told
        expected = isinstance(error, UserError | RoundIsOverError)
        why = "; ".join(map(plain, str(error).splitlines()))
        log.error("cannot take part: %s", why, exc_info=None if expected else error)
        kind = "" if expected else f"{type(error).__name__}: "
        return Message(pack({CANNOT: kind + without_paths(why)}), reply_to=message)


def _answer(site: Site, message: Message, header: Mapping[str, Any]) -> Message:
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
    return Message(encode_reply(reply, wire, site.keys(invitation, order)), reply_to=message)


def without_paths(text: str) -> str:
    """Remove a site's paths, which no one else should see.

    >>> without_paths("data.rooms.root: found no folder /data/ward 7/NYUDv2")
    'data.rooms.root: found no folder …'
    """
    return PATH.sub("…", text)


def make_app(site: Site | None = None, files: Sequence[Path] = ()) -> ClientApp:
    """An app for one site, for the site whose file the node config names, or for one that a simulation numbers."""
    app = ClientApp()
    sites: dict[Path, Site] = {}

    def handle(message: Message, context: Context) -> Message:
        if site is not None:
            return answer(site, message)
        path = _file(context, files)
        if path not in sites:
            sites[path] = Site(SiteConfig.load(path))
        return answer(sites[path], message)

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
