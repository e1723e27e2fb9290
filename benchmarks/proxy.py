"""Cost of the proxy in front of the SuperLink: an answer up and a message down on loopback, with and without it.

    python benchmarks/proxy.py

Bytes are sent as a SuperNode sends them: objects of 5 MB over TLS, two at a time. Without the proxy, requests carry the
operator's token. The two ways alternate, and the best of each counts.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supernode import fleet_http_connection
from row import Row, show

from fedhca2.federation.flower.deploy.link import Link, make_keys
from fedhca2.federation.flower.deploy.superlink import TOKEN, operator_token

MB = 1e6
AT_ONCE = 2  # Flower's own number
SIGNED = fleet_http_connection.NodeAuthHttpInterceptor


def time_transfer(connection: Any, grid: Any, size: int) -> tuple[float, float]:
    """Return the seconds to send this many bytes down to a site, and up again."""
    node, receive, send, _, _, pull, push, confirm = connection
    content = RecordDict({"rows": ArrayRecord({"own": Array("uint8", (size,), "raw", os.urandom(size))})})
    grid.push_messages([Message(content, node, "query")])
    with ThreadPoolExecutor(AT_ONCE) as several:
        began = time.perf_counter()
        message, tree = receive()
        names = [one.object_id for one in iterate_object_tree(tree)]
        list(several.map(lambda name: pull(message.metadata.run_id, name), names))
        down = time.perf_counter() - began
        confirm(message.metadata.run_id, tree.object_id)
        message.metadata.__dict__["_message_id"] = tree.object_id
        content["rows"] = ArrayRecord({"own": Array("uint8", (size,), "raw", os.urandom(size))})
        reply = Message(content, reply_to=message)
        objects = get_all_nested_objects(reply)
        contents = {name: nested.deflate() for name, nested in objects.items()}
        reply.metadata.__dict__["_message_id"] = reply.object_id
        began = time.perf_counter()
        missing, session = send(reply, get_object_tree(reply), 0.0)
        list(several.map(lambda name: push(message.metadata.run_id, session, name, contents[name]), missing))
        up = time.perf_counter() - began
    list(grid.pull_messages([tree.object_id]))  # so that the SuperLink frees it
    return up, down


def rows(quick: bool = False) -> Iterator[Row]:
    """Measure the time through the proxy as a multiple of the time without it, and the proxy's memory."""
    size = int((25 if quick else 110) * MB)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        keys = Path(folder) / "keys"
        make_keys(keys, ["through", "past"])
        link = stack.enter_context(Link(keys, "127.0.0.1:0", logs=Path(folder)))
        link.register(["through", "past"])
        token = operator_token((keys / "secret").read_bytes())

        class Operator(SIGNED):  # type: ignore[misc, valid-type]
            def intercept(self, context: Any, call_next: Any) -> Any:
                context.request.headers[TOKEN] = token
                return super().intercept(context, call_next)

        def connect(name: str, address: str) -> Any:
            key = load_ssh_private_key((keys / "sites" / name / "node.key").read_bytes(), None)
            pair = (key, key.public_key())
            opened = fleet_http_connection.http_request_response(address, False, (keys / "ca.crt").read_bytes(), pair)
            return stack.enter_context(opened)

        through = connect("through", link.public)
        fleet_http_connection.NodeAuthHttpInterceptor = Operator
        past = connect("past", link.superlink.address)
        grid = stack.enter_context(link.superlink.run())
        times: dict[str, list[tuple[float, float]]] = {"through": [], "past": []}
        for _ in range(2 if quick else 4):
            times["past"].append(time_transfer(past, grid, size))
            times["through"].append(time_transfer(through, grid, size))
        status = Path(f"/proc/{link.processes['proxy'].pid}/status").read_text()
        best = {way: [min(own) for own in zip(*taken, strict=True)] for way, taken in times.items()}
    for number, way in enumerate(("up", "down")):
        direct, proxied = best["past"][number], best["through"][number]
        yield Row(f"proxy, {size / MB:.0f} MB {way}: past it", size / MB / direct, "MB/s")
        yield Row(f"proxy, {size / MB:.0f} MB {way}: through it", size / MB / proxied, "MB/s")
        yield Row(f"proxy, {size / MB:.0f} MB {way}: time through it", proxied / direct, "of past it", at_most=2.5)
    yield Row("proxy: memory at most", int(status.split("VmHWM:")[1].split()[0]) / 1024, "MiB", at_most=256)


if __name__ == "__main__":
    show(rows())
