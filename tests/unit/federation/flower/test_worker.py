"""What a site does when its SuperNode does not take a reply."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.proto.runtime_pb2 import AcquireTaskResponse

from fedhca2.federation.flower import worker


class SuperNode:
    """Runs, and has one task."""

    def __init__(self):
        self.tasks = [AcquireTaskResponse(token="token")]
        self.tasks[0].task.task_id = 1

    def poll(self):
        return None

    def AcquireTask(self, request):  # noqa: N802
        return self.tasks.pop() if self.tasks else AcquireTaskResponse()

    def SendTaskHeartbeat(self, request): ...  # noqa: N802

    def close(self): ...


def expired(*_):
    raise RuntimeError("the task has expired")


@pytest.mark.parametrize("refused", ["pull_task_input", "push_message"])
def test_a_supernode_that_does_not_take_a_reply_is_not_served_any_longer(refused, monkeypatch, caplog):
    node = SuperNode()
    parts = {
        "runtime_client": lambda *_: node,
        "RuntimeHttpClient": SimpleNamespace(from_server_address=lambda *_, **__: node),
        "pull_task_input": lambda client: ("message", "context", None, None),
        "push_message": lambda *_: None,
        "push_task_output": lambda *_: None,
    }
    for name, part in (parts | {refused: expired}).items():
        monkeypatch.setattr(worker, name, part)

    def app(message, context):
        return f"reply to {message}"

    serving = threading.Thread(
        target=worker._serve, args=(app, threading.Lock(), node, "127.0.0.1:1", Path("secret")), daemon=True
    )
    serving.start()
    serving.join(10)
    assert not serving.is_alive()
    assert "a reply could not be delivered" in caplog.text
