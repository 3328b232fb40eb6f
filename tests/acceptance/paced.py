"""The web of the acceptance tests with times that a test can wait for: TEST_PACE=heartbeat_seconds=1,lease_seconds=3."""

from __future__ import annotations

import os
from dataclasses import replace

from flask import Flask

import web
from orchestrator.loader import load_app
from web.stream import Pace


def below() -> Flask:
    """Once more, below a prefix."""
    app = load_app(os.environ["ORCHESTRATOR_APP"])
    flask = web.create_app(app)
    flask.register_blueprint(web.blueprint(app), url_prefix="/agents/first", name="first")
    return flask


def make() -> Flask:
    """On its own."""
    given = [pair.partition("=") for pair in os.environ.get("TEST_PACE", "").split(",") if pair]
    pace = Pace()
    for name, _, text in given:
        pace = replace(pace, **{name: float(text)})  # type: ignore[arg-type]  # never first_looks
    return web.create_app(load_app(os.environ["ORCHESTRATOR_APP"]), pace=pace)
