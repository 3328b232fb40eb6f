"""The commands: their names, flags and words of help. Nothing is done here, and nothing heavy is imported before a command runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.core import TyperGroup


class Root(TyperGroup):
    """The outermost command. A reader of our output that has read enough is no failure, whatever typer makes of it."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # typer's own class of the same context
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def _group(about: str, *, root: bool = False) -> typer.Typer:
    return typer.Typer(
        help=about,
        cls=Root if root else None,
        invoke_without_command=root,
        add_completion=root,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = _group("Durable AI agents on Celery, Redis and Flask.", root=True)
sessions = _group("Look at sessions; stop, clear, end and erase them.")
journal = _group("What the journal has kept of a session.")
keys = _group("Keys for the HTTP interface.")

AppName = Annotated[
    str,
    typer.Argument(
        metavar="APP", show_default=False, help="module:name of the App (else ORCHESTRATOR_APP, else pyproject.toml)"
    ),
]
Session = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="ses_...")]
PoolKind = Literal["threads", "prefork", "solo"]
PoolName = Annotated[PoolKind, typer.Option("--pool", "-P", help="CPU-heavy tools want prefork")]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", "-c", min=1, show_default=False, help="sessions at a time in each process"),
]
Events = Annotated[bool, typer.Option("--events", "-E", help="tell Flower about tasks")]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs")]
Port = typer.Option(min=0, max=65535, metavar="PORT", envvar="PORT", show_envvar=True, help="0: any free one")


@app.callback()
def root(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False
) -> int:
    """Durable AI agents on Celery, Redis and Flask."""
    if version:
        from importlib.metadata import version as version_of

        print(version_of("celery-orchestrator"))
        raise typer.Exit(0)
    if ctx.invoked_subcommand is None:
        with contextlib.redirect_stdout(sys.stderr):
            if text := ctx.get_help():
                print(text)
        raise typer.Exit(2)
    return 0


# Running ----------------------------------------------------------------------------------------------------------------


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", show_default=False, help="a folder that is new or empty")],
) -> int:
    """Write a small project that runs at once, without a key: one agent, two tools, a test."""
    from orchestrator.cli.init import init

    return init(folder)


@app.command()
def dev(
    name: AppName = "",
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="0: any free one")] = 8000,
    data: Annotated[
        str, typer.Option(metavar="DIR", show_default=False, help="the Valkey's folder (default: .orchestrator)")
    ] = "",
    processes: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="worker processes")] = 1,
    no_chat: Annotated[bool, typer.Option("--no-chat", help="no prompt in this terminal")] = False,
    pool: PoolName = "threads",
    concurrency: Concurrency = None,
    events: Events = False,
) -> int:
    """Run everything on this machine: a Valkey (its data are kept), workers, and the HTTP interface on 127.0.0.1 without keys.

    Prints one line when all of it is ready. Ctrl-C ends it; what was begun goes on at the next start.
    """
    from orchestrator.cli.dev import dev
    from orchestrator.cli.processes import Pool

    return dev(name, port=port, data=data, processes=processes, chat=not no_chat, pool=Pool(pool, concurrency, events))


@app.command()
def worker(
    name: AppName = "",
    *,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="worker processes")] = 1,
    pool: PoolName = "threads",
    concurrency: Concurrency = None,
    events: Events = False,
) -> int:
    """Run worker processes, started again when they die.

    SIGTERM lets them finish or hand on what they hold (ORCHESTRATOR_DRAIN_SECONDS). `celery -A tasks worker` is one such process.
    """
    from orchestrator.cli.processes import Pool, worker

    return worker(name, processes, Pool(pool, concurrency, events))


@app.command()
def web(
    name: AppName = "",
    *,
    port: Annotated[int, Port] = 8000,
    host: Annotated[
        str,
        typer.Option(
            envvar="BIND",
            show_envvar=True,
            help="0.0.0.0 to be reached from elsewhere; HOST:PORT and unix:PATH work too",
        ),
    ] = "127.0.0.1",
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="web processes")] = 1,
) -> int:
    """Run the HTTP interface: gunicorn with threads, no timeout for streams, and a short good-bye.

    More of gunicorn's options: GUNICORN_CMD_ARGS.
    """
    from orchestrator.cli.processes import web

    return web(name, host=host, port=port, processes=processes)


@app.command()
def chat(
    url: Annotated[str, typer.Argument(metavar="[URL]", show_default=False, help="where the HTTP interface is")] = (
        "http://127.0.0.1:8000"
    ),
    *,
    session: Annotated[
        str, typer.Option("--session", "-s", metavar="ID", show_default=False, help="go on with this one")
    ] = "",
    agent: Annotated[
        str, typer.Option(metavar="NAME", show_default=False, help="of the App (default: its first)")
    ] = "",
    remember: Annotated[Path | None, typer.Option(hidden=True, help="a file with the session of the last time")] = None,
) -> int:
    """Talk to a running system: its words as they come, its tools, and what it asks you. Typing steers, Esc stops.

    Where the server wants a key: CHAT_KEY. From a pipe each line is said when the one before is answered.
    """
    from orchestrator.cli.chat import chat

    return chat(url, session=session, agent=agent, remember=remember)


# Looking ----------------------------------------------------------------------------------------------------------------


@app.command()
def doctor(
    name: AppName = "",
    *,
    site: Annotated[
        str,
        typer.Option(
            "--web",
            metavar="URL",
            show_default=False,
            help="a web process to ask (default: the one at BIND and PORT, if there is one)",
        ),
    ] = "",
    as_json: Json = False,
) -> int:
    """Look at everything and say what is wrong: settings, Redis, durability, workers, queues, clocks, who may call.

    Changes nothing. Exit code 1 if something cannot work; warnings are 0.
    """
    from orchestrator.cli.doctor import doctor

    return doctor(name, site, as_json=as_json)


@app.command()
def bench(
    *,
    seconds: Annotated[float, typer.Option(min=1, max=15, help="of load")] = 5.0,
    processes: Annotated[int, typer.Option("--workers", min=1, max=64, metavar="N", help="worker processes")] = 2,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="sessions at a time in each of them")
    ] = 32,
    as_json: Json = False,
) -> int:
    """Measure steps per second and latency on the Redis of your settings, within 20 seconds.

    With an agent, workers and keys of its own: yours are not touched, no model is called, and nothing is left behind.
    """
    from orchestrator.cli.bench import bench

    return bench(seconds, processes, concurrency, as_json=as_json)


app.add_typer(sessions, name="sessions")
app.add_typer(journal, name="journal")
app.add_typer(keys, name="keys")


@sessions.command("list")
def list_sessions(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="how many at most")] = 20,
    after: Annotated[
        str, typer.Option(metavar="PLACE", show_default=False, help="go on behind this session, or this cursor")
    ] = "",
    agent: Annotated[str, typer.Option(show_default=False, help="of this agent only")] = "",
    status: Annotated[
        str, typer.Option(show_default=False, help="with this status only: idle, running, queued, ...")
    ] = "",
    as_json: Json = False,
) -> int:
    """The sessions used last, newest first. With --json one object a line, whose `cursor` is a place for --after."""
    from orchestrator.cli.sessions import list_

    return list_(limit, after, agent, status, as_json=as_json)


@sessions.command("show")
def show_session(session: Session, as_json: Json = False) -> int:
    """One session: its fields, what it waits for in a sentence, and what it asks people."""
    from orchestrator.cli.sessions import show

    return show(session, as_json=as_json)


@sessions.command("follow")
def follow_session(
    session: Session,
    first: Annotated[
        int, typer.Option("--from", metavar="INDEX", help="of the event to begin with; -5: the last five")
    ] = 0,
    to_end: Annotated[bool, typer.Option("--to-end", help="stop at the end of what is there")] = False,
    as_json: Annotated[
        bool | None,
        typer.Option(
            "--json/--text",
            show_default=False,
            help="JSON, one event a line; the default where nobody reads along (a pipe, a file)",
        ),
    ] = None,
) -> int:
    """Its stream, from the beginning on and live, until the session ends."""
    from orchestrator.cli.sessions import follow

    return follow(session, first, to_end=to_end, as_json=as_json)


@sessions.command("requests")
def requests_of_session(session: Session) -> int:
    """What it has asked people and who has answered: JSON, one request a line."""
    from orchestrator.cli.sessions import requests

    return requests(session)


def _order(name: str, about: str) -> Callable[[str], int]:
    def give(session: Session) -> int:
        from orchestrator.cli.sessions import order

        return order(name, session)

    sessions.command(name, help=about)(give)
    return give


_order("cancel", "Stop the open turn.")
_order("clear", "Let the model forget what was said, when no turn is open.")
_order("compact", "Let the model sum up what was said long ago, when no turn is open.")
_order("reset", "End it for good; its addresses lead to a new one.")
_order("erase", "Leave nothing of it, whatever it is doing.")


@journal.command("show")
def show_journal(session: Session, as_json: Json = False) -> int:
    """The facts that are kept of a session, its steps with their attempts, and how long each took."""
    from orchestrator.cli.past import show

    return show(session, as_json=as_json)


@journal.callback()
def _journal() -> None:
    """What the journal has kept of a session."""


@keys.command("new")
def new_key(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="who it is for")],
    scopes: Annotated[
        str,
        typer.Option(
            metavar="SCOPE,...",
            show_default=False,
            help="of read, send, answer, control, metrics, erase, admin (default: read, send, answer, control)",
        ),
    ] = "",
) -> int:
    """Make a key. It is shown once; the server is given its entry."""
    from orchestrator.apikeys import mint

    key, entry = mint(name, [scope.strip() for scope in scopes.split(",") if scope.strip()])
    print(key)
    print(
        f"This is the only time it is shown. Let the server know it: ORCHESTRATOR_API_KEYS={entry} (several: separated by commas)",
        file=sys.stderr,
    )
    return 0


@keys.callback()
def _keys() -> None:
    """Keys for the HTTP interface."""
