"""docker-compose.yml without Docker: its services as processes of this machine, with the commands, the environments and the health
checks that the file gives them. Only what a container would give them is put in: hosts, ports, folders, a name for each worker."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from orchestrator.local import valkey_binary
from tests.servers import free_port, wait_for
from tests.tasks.workers import ROOT, Process

FILE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Z_]+)(?::-([^}]*))?\})")
PING = """#!/bin/sh
exec {python} -c 'import redis, sys; sys.exit(not redis.Redis(port={port}).execute_command(*sys.argv[1:]))' "$@"
"""
Spec = dict[str, Any]


def read(environ: Mapping[str, str]) -> Spec:
    """The file as Compose reads it with this environment."""

    def value(found: re.Match[str]) -> str:
        dollar, name, default = found.groups()
        return dollar or environ.get(name) or default or ""

    def filled(node: Any) -> Any:
        match node:
            case str():
                left = VARIABLE.sub("", node)
                assert "$" not in left, f"Compose would not understand {node!r}, or this test does not"
                return VARIABLE.sub(value, node)
            case list():
                return [filled(each) for each in node]
            case dict():
                return {name: filled(each) for name, each in node.items()}
            case _:
                return node

    made: Spec = filled(yaml.safe_load(FILE.read_text()))
    return made


class Composed:
    """The services of the file. `with Composed(folder, {"FLOWER_BASIC_AUTH": "me:secret"}) as system: system.up()`"""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.services: dict[str, Spec] = read(environ)["services"]
        self.ports = {"redis": free_port(), "web": free_port(), "flower": free_port()}
        self.running: dict[str, Process] = {}
        self.programs = folder / "bin"
        self.programs.mkdir()
        (self.programs / "valkey-server").symlink_to(valkey_binary())
        ping = self.programs / "valkey-cli"
        ping.write_text(PING.format(python=shlex.quote(sys.executable), port=self.ports["redis"]))
        ping.chmod(0o755)

    def names(self, service: str) -> list[str]:
        """A name for each container of a service."""
        replicas = self.services[service].get("deploy", {}).get("replicas", 1)
        return [f"{service}-{number}" for number in range(1, replicas + 1)]

    def up(self, *services: str) -> None:
        """Start these services, all if none is named, each after those it depends on are healthy; wait until all are."""
        wanted = list(services or self.services)
        while wanted:
            ready = [name for name in wanted if not set(self._before(name)) & set(wanted)]
            assert ready, f"{wanted} wait for each other"
            for service in ready:
                for name in self.names(service):
                    self.running[name] = self._start(service, name)
            for service in ready:
                for name in self.names(service):
                    self._wait_until_healthy(service, name)
            wanted = [name for name in wanted if name not in ready]

    def start_again(self, service: str, name: str) -> None:
        """A container that has ended, once more."""
        assert not self.running[name].running
        self.running[name] = self._start(service, name)
        self._wait_until_healthy(service, name)

    def _before(self, service: str) -> list[str]:
        before = self.services[service].get("depends_on", {})
        assert all(condition == {"condition": "service_healthy"} for condition in before.values()), before
        return list(before)

    def _here(self, text: str) -> str:
        """A text of the file with the hosts and ports of this machine."""
        text = text.replace("redis:6379", f"127.0.0.1:{self.ports['redis']}").replace("0.0.0.0", "127.0.0.1")
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{self.ports['web']}").replace(
            "127.0.0.1:5555", f"127.0.0.1:{self.ports['flower']}"
        )

    def environment(self, service: str, name: str) -> dict[str, str]:
        """What the file gives the service, and what its container would."""
        given = {key: self._here(str(value)) for key, value in self.services[service].get("environment", {}).items()}
        path = f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        container = {"PATH": path, "HOME": str(self.folder), "HOSTNAME": name, "PYTHONUNBUFFERED": "1"}
        here = {
            "web": {"PORT": str(self.ports["web"])},
            "flower": {"FLOWER_PORT": str(self.ports["flower"]), "FLOWER_ADDRESS": "127.0.0.1"},
        }
        return {**container, "PYTHONPATH": str(ROOT), **given, **here.get(service, {})}

    def command(self, service: str, name: str) -> list[str]:
        """The command of the file, with what a container of its own would have made different."""
        command = self.services[service]["command"]
        words = [self._here(word) for word in (shlex.split(command) if isinstance(command, str) else command)]
        match service:
            case "redis":
                return [*words, "--bind", "127.0.0.1", "--port", str(self.ports["redis"]), "--dir", str(self.folder)]
            case "worker":
                return [*words, "-n", f"celery@{name}"]
            case _:
                return words

    def _start(self, service: str, name: str) -> Process:
        # `env` finds the program in the PATH of the service, and becomes it.
        command = ["env", *self.command(service, name)]
        return Process(command, self.environment(service, name), self.folder / f"{name}.log", cwd=self.folder)

    def is_healthy(self, service: str, name: str) -> bool:
        """Run the health check of the file once."""
        check = self.services[service]["healthcheck"]
        match check["test"]:
            case ["CMD", *words]:
                command = [self._here(word) for word in words]
            case ["CMD-SHELL", line]:
                command = ["sh", "-c", self._here(line)]
            case other:
                raise AssertionError(f"no health check: {other!r}")
        done = subprocess.run(
            ["env", *command], env=self.environment(service, name), cwd=self.folder, capture_output=True, timeout=60
        )
        return done.returncode == 0

    def _wait_until_healthy(self, service: str, name: str) -> None:
        process = self.running[name]

        def healthy() -> bool:
            assert process.running, f"{name} has ended:\n{process.log}"
            return self.is_healthy(service, name)

        wait_for(healthy, 90, what=f"{name} to be healthy:\n{process.log}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self.running.values()):
            if process.running:
                process.signal()
                try:
                    process.ends(30)
                finally:
                    process.stop()
