"""What the real web process of these tests serves: `create_app` with times that a test can wait for."""

import os

from flask import Flask

import web
from orchestrator.agent import Agent, App
from web.stream import Pace

app = App(agents=[Agent("helper", instructions="Help.")])


def make() -> Flask:
    return web.create_app(app, pace=Pace(**{name: float(text) for name, text in _given()}))


def _given() -> list[tuple[str, str]]:
    pairs = [pair.partition("=") for pair in os.environ.get("TEST_PACE", "").split(",") if pair]
    return [(name, text) for name, _, text in pairs]
