"""The engine of this process: made once, when it is first needed, and anew in every forked child."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace

from celery import Celery

from orchestrator import world
from orchestrator.agent import App
from orchestrator.config import Settings, from_environment
from orchestrator.engine import Engine
from orchestrator.errors import OrchestratorError
from orchestrator.ports import Wake
from orchestrator.wake import AtomicWake
from tasks.wake import PublishedWake


class Here:
    """One Celery app's engine in whatever process this is."""

    def __init__(self, celery: Celery, app: App | None = None, settings: Settings | None = None) -> None:
        self.celery = celery
        self._app = app
        self._given = settings
        self._engine: Engine | None = None
        self._settings: Settings | None = None
        self._lock = threading.RLock()
        # A lock that somebody held at the moment of a fork is held in the child for ever.
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        # So are its connections' and its threads' state: a child makes an engine of its own.
        self._lock = threading.RLock()
        self._engine = None

    @property
    def app(self) -> App:
        """The App of this deployment. Raises `ConfigError` where it cannot be had."""
        with self._lock:
            if self._app is None:
                from orchestrator.loader import load_app

                self._app = load_app(from_environment().app)
            return self._app

    @property
    def settings(self) -> Settings:
        """How this process runs: the environment over what the App says, once that is loaded. Connects to nothing."""
        with self._lock:
            if self._settings is None:
                self._settings = self._find_settings()
            return self._settings

    def _find_settings(self) -> Settings:
        return from_environment(self._given or (self._app.settings if self._app else None))

    def load(self) -> App:
        """Load the App, and with it the settings that it brings. Raises `ConfigError`."""
        with self._lock:
            app = self.app
            self._settings = None
            return app

    def engine(self) -> Engine:
        """The engine. Raises `ConfigError`, `JournalAway`."""
        with self._lock:
            if self._engine is None:
                app = self.load()
                self._engine = Engine(app, self.settings, wake=self._wake(self.settings))
            return self._engine

    def warm(self) -> None:
        """Open the journal and load what the first session would wait for; children of a fork find the modules loaded.

        Raises as `engine`.
        """
        engine = self.engine()
        for agent in engine.app.agents:
            engine.process.layer.toolbox(agent.tools)
            with suppress(OrchestratorError):  # its turns say what is missing; others may work
                engine.process.model(agent)

    def has_worked(self) -> bool:
        """Whether a session was worked on in this process."""
        return self._engine is not None and "process" in self._engine.__dict__

    def broker_url(self) -> str:
        """The broker our workers listen on; a local one is started."""
        return world.broker_url(self.settings)

    @property
    def key_prefix(self) -> str:
        """What Celery's redis transport puts before every key of the broker."""
        return str((self.celery.conf.broker_transport_options or {}).get("global_keyprefix", ""))

    def _wake(self, settings: Settings) -> Wake:
        if not world.announces_itself(settings):
            return PublishedWake(self.celery)
        return AtomicWake(
            prefix=settings.prefix,
            broker_db=world.database(world.broker_url(settings)),
            journal_db=world.database(world.journal_url(settings)),
            key_prefix=self.key_prefix,
        )


class Guest(Here):
    """The engine in the workers of a Celery app that was there before us: its broker is ours too, unless another is named."""

    def _find_settings(self) -> Settings:
        settings = super()._find_settings()
        if settings.broker_url:
            return settings
        return replace(settings, broker_url=self.celery.connection_for_read().as_uri(include_password=True))
