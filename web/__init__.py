"""HTTP: three lines a route, then the engine.

    create_app()        a Flask app of its own, for gunicorn:  gunicorn -c python:web.gunicorn 'web:create_app()'
    blueprint(app)      the same routes for a Flask app that is there already

The routes are mounted twice: `/eve/v1` keeps to the letter of the session protocol, `/v1` may say more.
"""

from __future__ import annotations

from flask import Blueprint, Flask
from werkzeug.exceptions import HTTPException

from orchestrator.agent import App
from orchestrator.config import from_environment
from orchestrator.engine import Engine
from orchestrator.loader import load_app
from web import problems
from web.front import Front
from web.routes import mount
from web.stream import Pace

__all__ = ["blueprint", "create_app"]


def create_app(app: App | None = None, engine: Engine | None = None, *, pace: Pace | None = None) -> Flask:
    """A Flask app. Without `app` it serves the one that ORCHESTRATOR_APP names. Raises `ConfigError`.

    Nothing is connected yet: a journal that is away makes requests fail, never the start.
    """
    if app is None:
        app = engine.app if engine else load_app(from_environment().app)
    flask = Flask("web", static_folder=None)
    flask.register_blueprint(blueprint(app, engine, pace=pace))
    flask.register_error_handler(HTTPException, problems.answer)
    return flask


def blueprint(app: App, engine: Engine | None = None, *, pace: Pace | None = None) -> Blueprint:
    """The routes, for `flask_app.register_blueprint(web.blueprint(app))`, with a `url_prefix` if you like.

    It changes nothing of the Flask app around it. Raises `ConfigError`.
    """
    made = Blueprint("orchestrator", "web")
    front = Front(app, engine, pace or Pace())
    mount(made, front)
    made.record_once(lambda state: state.app.extensions.setdefault("orchestrator", front))
    return made
