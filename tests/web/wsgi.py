"""What the real web process of these tests serves: `create_app` with times that a test can wait for."""

import os
from dataclasses import replace

from flask import Flask

import web
from orchestrator.agent import Agent, App
from web.stream import Pace

app = App(agents=[Agent("helper", instructions="Help.")])


def make() -> Flask:
    given = [pair.partition("=") for pair in os.environ.get("TEST_PACE", "").split(",") if pair]
    pace = Pace()
    for name, _, text in given:
        pace = replace(pace, **{name: float(text)})  # type: ignore[arg-type]  # never first_looks
    return web.create_app(app, pace=pace)
