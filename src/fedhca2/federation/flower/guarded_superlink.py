"""`flower-superlink` for those who show the operator's token: the proxy, and the coordinator's own commands.

Flower's control API asks for nothing, so that on a machine with several users each of them could register keys. Here
every request is refused that does not come with what only a reader of the secret's file knows.
"""

import hmac

import uvicorn
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fedhca2.federation.flower.control import TOKEN, operator_token
from fedhca2.federation.flower.internals import flower_superlink


class Guarded:
    """An application that answers nobody without the token."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._token = operator_token(app.state.superexec_auth_secret).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or hmac.compare_digest(
            dict(scope["headers"]).get(TOKEN.encode(), b""), self._token
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse("this SuperLink is for its coordinator", 403)(scope, receive, send)


def main() -> None:
    """Run Flower's command, with the guard between its server and its application."""
    run = uvicorn.run
    uvicorn.run = lambda app, **options: run(Guarded(app), **options)
    flower_superlink()


if __name__ == "__main__":
    main()
