"""An identity provider of a test: its configuration, its keys, and tokens that it signs."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
AUDIENCE = "orchestrator"


def pem(key: Private) -> str:
    """The public half, as text."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def claims(issuer: str, **more: Any) -> dict[str, Any]:
    """What a good token says, with other claims over it; None leaves one out."""
    given = {"iss": issuer, "aud": AUDIENCE, "sub": "anna", "exp": time.time() + 86_400, **more}
    return {name: value for name, value in given.items() if value is not None}


def algorithm_of(key: Private) -> str:
    """How keys of this kind sign here."""
    match key:
        case rsa.RSAPrivateKey():
            return "RS256"
        case ec.EllipticCurvePrivateKey():
            return "ES256"
        case _:
            return "EdDSA"


def signed(key: Private, told: Mapping[str, Any], kid: str | None = None, **header: Any) -> str:
    """A token."""
    headers = {**header, **({"kid": kid} if kid else {})}
    return jwt.encode(dict(told), key, algorithm_of(key), headers=headers)


def jwk(key: Private, kid: str | None, **more: Any) -> dict[str, Any]:
    """The public half, as a provider publishes it."""
    made = jwt.get_algorithm_by_name(algorithm_of(key)).to_jwk(key.public_key(), as_dict=True)
    return {**made, **({"kid": kid} if kid else {}), "use": "sig", **more}


class Issuer:
    """On a free port of this machine. `keys` is what it publishes; `asked` which paths were asked for; `alter` changes an answer."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.alter: Callable[[str, dict[str, Any]], dict[str, Any] | str | int] = lambda _, body: body
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # http.server's name
                outer._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        body: dict[str, Any] = {"keys": self.keys}
        if handler.path == "/.well-known/openid-configuration":
            body = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        told = self.alter(handler.path, body)
        if isinstance(told, int):
            handler.send_error(told)
        elif isinstance(told, str):
            handler.send_response(302)
            handler.send_header("location", told)
            handler.end_headers()
        else:
            text = json.dumps(told).encode()
            handler.send_response(200)
            handler.send_header("content-length", str(len(text)))
            handler.end_headers()
            handler.wfile.write(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
