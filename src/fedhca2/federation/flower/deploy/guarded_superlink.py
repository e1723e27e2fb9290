"""`flower-superlink` for holders of the operator's token: the proxy and the coordinator's own commands.

Flower's control API has no authentication, so on a machine with several users, each of them could register keys. Here
every request must carry a token that only a reader of the secret's file can compute.
"""

import hmac

import uvicorn
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fedhca2.federation.flower.deploy.control import TOKEN, operator_token
from fedhca2.federation.flower.deploy.processes import serve_given_socket
from fedhca2.federation.flower.internals import flower_superlink


class Guarded:
    """An application that refuses requests without the token."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._token = operator_token(app.state.superexec_auth_secret).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] == "lifespan" or hmac.compare_digest(
            dict(scope["headers"]).get(TOKEN.encode(), b""), self._token
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("this SuperLink is for its coordinator", 403)(scope, receive, send)


def main() -> None:
    """Run Flower's command with the guard between its server and its application."""
    run = uvicorn.run
    uvicorn.run = lambda app, **options: run(Guarded(app), **options)
    serve_given_socket()
    flower_superlink()


if __name__ == "__main__":
    main()
