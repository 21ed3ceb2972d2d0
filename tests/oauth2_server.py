"""An OAuth2 server with the client credentials grant, whose access tokens a broker's token provider accepts."""

import base64
import hmac
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs


def jwt(key: bytes, role: str, *, life_seconds: float | None = None) -> str:
    """Return a token for a role, signed with HS256; with a life of so many seconds from now, or for ever."""

    def part(content: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")

    expires = {} if life_seconds is None else {"exp": int(time.time() + life_seconds)}
    signed = part({"alg": "HS256"}) + b"." + part({"sub": role, **expires})
    mac = base64.urlsafe_b64encode(hmac.new(key, signed, sha256).digest()).rstrip(b"=")
    return (signed + b"." + mac).decode()


@dataclass
class OAuth2Server:
    """The clients that the server knows, and the forms that it got."""

    key: bytes
    secrets: dict[str, str]  # client_id -> client_secret
    audience: str = "urn:pulsar"
    scope: str = "reap"
    life_seconds: float = 300.0
    forms: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    token_endpoint: str = ""  # if not its own
    answer: tuple[int, dict[str, Any]] | None = None  # to every form, instead of its own

    def key_file(self, file: Path, client: str, secret: str | None = None) -> Path:
        """Write a client's key file in Pulsar's format."""
        key = {"type": "client_credentials", "client_id": client, "issuer_url": self.url}
        file.write_text(json.dumps({**key, "client_secret": self.secrets[client] if secret is None else secret}))
        return file

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return status and answer to a form."""
        if self.answer is not None:
            return self.answer
        role, expected = form.get("client_id", ""), (self.audience, self.scope, "client_credentials")
        if self.secrets.get(role) != form.get("client_secret"):
            return 401, {"error": "invalid_client", "error_description": f"not {form.get('client_secret')}"}
        if (form.get("audience", ""), form.get("scope", ""), form.get("grant_type")) != expected:
            return 400, {"error": "invalid_scope"}
        token = jwt(self.key, role, life_seconds=self.life_seconds)
        return 200, {"access_token": token, "expires_in": int(self.life_seconds), "token_type": "Bearer"}


@contextmanager
def oauth2_server(
    key: bytes, secrets: dict[str, str], *, certified: tuple[Path, Path] | None = None
) -> Iterator[OAuth2Server]:
    """Serve on this machine until the block ends; with files of a certificate and its key, over TLS."""
    server = OAuth2Server(key, secrets)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/realm/.well-known/openid-configuration"
            endpoint = server.token_endpoint or f"{server.url}/token"
            self._answer(*((200, {"token_endpoint": endpoint}) if is_known else (404, {})))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            server.forms.append(form)
            self._answer(*server.token(form))

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.url = f"http{'s' if certified else ''}://127.0.0.1:{http.server_address[1]}/realm"
        if certified:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certified)
            http.socket = context.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield server
        finally:
            http.shutdown()
