"""The team's Flask app, with the agent's routes beside its own."""

from __future__ import annotations

from flask import Flask, abort

import web
from examples import shop
from examples.embedded.desk import app
from examples.embedded.jobs import is_packed, pack

site = Flask("bookshop")


@site.get("/orders/<number>")
def order(number: str) -> dict[str, object]:
    """An order, as the shop's pages show it."""
    if number not in shop.ORDERS:
        abort(404, "There is no such order.")
    return {"order": number, "status": shop.ORDERS[number].status, "packed": is_packed(number)}


@site.post("/orders/<number>/pack")
def pack_it(number: str) -> tuple[dict[str, object], int]:
    """What a button in the warehouse does."""
    pack.delay(number)
    return {"order": number}, 202


site.register_blueprint(web.blueprint(app), url_prefix="/agent")
