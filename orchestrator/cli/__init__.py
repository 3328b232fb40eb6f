"""The command line: `orchestrator dev | worker | web | sessions | keys`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from orchestrator.errors import OrchestratorError

__all__ = ["main"]

POOLS = ("threads", "prefork", "solo")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. What is wrong with it is said in one line, with exit code 2."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    if not hasattr(asked, "run"):
        parser.print_help(sys.stderr)
        return 2
    try:
        return int(asked.run(asked))
    except OrchestratorError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read us has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orchestrator", description="Durable AI agents on Celery, Redis and Flask.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _dev(commands.add_parser("dev", help="everything on this machine: server, workers, web", description=_DEV))
    _worker(commands.add_parser("worker", help="worker processes, started again when they die", description=_WORKER))
    _web(commands.add_parser("web", help="the HTTP interface", description=_WEB))
    _sessions(commands.add_parser("sessions", help="look at sessions, stop, clear, end and erase them"))
    _keys(commands.add_parser("keys", help="keys for the HTTP interface"))
    return parser


_DEV = """Start a local server (Valkey, its data are kept), workers and the HTTP interface on 127.0.0.1, without keys.
Prints one line when all of it is ready. Ctrl-C ends it; what was begun goes on at the next start."""
_WORKER = """Start worker processes and keep them running. SIGTERM lets them finish or hand on what they hold
(ORCHESTRATOR_DRAIN_SECONDS). `celery -A tasks worker` is one such process."""
_WEB = "Start the HTTP interface with gunicorn. More of gunicorn's options: GUNICORN_CMD_ARGS."


def _app(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    parser.add_argument(
        "app", metavar="APP", nargs=None if required else "?", help="module:name of the App (else ORCHESTRATOR_APP)"
    )


def _pool(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pool", "-P", choices=POOLS, default="threads", help="CPU-heavy tools want prefork")
    parser.add_argument("-c", "--concurrency", type=_count, help="sessions at a time in each process")
    parser.add_argument("-E", "--events", action="store_true", help="tell Flower about tasks")


def _dev(parser: argparse.ArgumentParser) -> None:
    _app(parser)
    parser.add_argument("--port", type=_port, default=8000, help="0: any free one (default: 8000)")
    parser.add_argument("--data", metavar="DIR", default=".orchestrator", help="default: .orchestrator")
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="worker processes (default: 1)")
    parser.add_argument("--no-chat", action="store_true", help="no prompt in this terminal")
    _pool(parser)

    def run(asked: argparse.Namespace) -> int:
        from orchestrator.cli.dev import dev

        return dev(asked)

    parser.set_defaults(run=run)


def _worker(parser: argparse.ArgumentParser) -> None:
    _app(parser)
    parser.add_argument("--processes", type=_count, default=1, metavar="N", help="default: 1")
    _pool(parser)

    def run(asked: argparse.Namespace) -> int:
        from orchestrator.cli.processes import worker

        return worker(asked)

    parser.set_defaults(run=run)


def _web(parser: argparse.ArgumentParser) -> None:
    _app(parser)
    parser.add_argument("--port", type=_port, default=8000)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to be reached from elsewhere")

    def run(asked: argparse.Namespace) -> int:
        from orchestrator.cli.processes import web

        return web(asked)

    parser.set_defaults(run=run)


def _sessions(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, about in (
        ("list", "the sessions used last"),
        ("show", "one session"),
        ("follow", "its stream, from the beginning on, one event a line"),
        ("requests", "what it has asked people and who has answered, one request a line"),
        ("cancel", "stop the open turn"),
        ("clear", "let the model forget what was said, when no turn is open"),
        ("compact", "let the model sum up what was said long ago, when no turn is open"),
        ("reset", "end it for good; its addresses lead to a new one"),
        ("erase", "leave nothing of it, whatever it is doing"),
    ):
        command = commands.add_parser(name, help=about)
        if name == "list":
            command.add_argument("-n", type=_count, default=20, metavar="N", help="how many (default: 20)")
        else:
            command.add_argument("session", metavar="ID")
        if name == "follow":
            command.add_argument("--from", dest="first", type=int, default=0, metavar="INDEX", help="default: 0")
            command.add_argument("--to-end", action="store_true", help="stop at the end of what is there")

        def run(asked: argparse.Namespace, name: str = name) -> int:
            from orchestrator.cli import sessions

            return int(getattr(sessions, name + "_")(asked))

        command.set_defaults(run=run)


def _keys(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    new = commands.add_parser("new", help="make a key")
    new.add_argument("name", metavar="NAME", help="who it is for")
    new.add_argument(
        "--scopes",
        default="",
        metavar="SCOPE,...",
        help="of read, send, answer, control, erase, admin (default: all but erase and admin)",
    )

    def run(asked: argparse.Namespace) -> int:
        from orchestrator.apikeys import mint

        key, entry = mint(asked.name, [scope.strip() for scope in asked.scopes.split(",") if scope.strip()])
        print(key)
        print(
            f"This is the only time it is shown. Let the server know it: ORCHESTRATOR_API_KEYS={entry}"
            " (several: separated by commas)",
            file=sys.stderr,
        )
        return 0

    new.set_defaults(run=run)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError("0 to 65535")
    return number


if __name__ == "__main__":
    sys.exit(main())
