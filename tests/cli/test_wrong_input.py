"""What is wrong is one sentence that says what to do, with an exit code that says whose turn it is, and no traceback."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from orchestrator import local
from tests.cli.conftest import APP, Answer, Told
from tests.conftest import MakeServer
from tests.servers import Server

SESSION = "ses_01M8PDT0000000000000000000AB"
LOOKING = (
    ("sessions", "list"),
    *(
        ("sessions", verb, SESSION)
        for verb in ("show", "follow", "requests", "cancel", "clear", "compact", "reset", "erase")
    ),
    ("journal", "show", SESSION),
    ("bench",),
)
STARTING = (("worker", APP), ("web", APP, "--port", "0"))
OF_A_SESSION = [words[:-1] for words in LOOKING if words[-1] == SESSION]
DOWN, WRONG = 1, 2


def one_sentence(answer: Answer, code: int, *said: str) -> None:
    assert answer.code == code, answer
    assert answer.out == ""
    assert answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err
    for words in said:
        assert words in answer.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder that Python does not know yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    return tmp_path


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_redis_that_is_down_is_named(words: tuple[str, ...], told: Told) -> None:
    url = "redis://somebody:secret@127.0.0.1:1/0"
    answer = told(*words, url=url)
    one_sentence(answer, DOWN, "redis://somebody:***@127.0.0.1:1/0 does not answer", "ORCHESTRATOR_URL")
    assert "secret" not in answer.err


def test_a_broker_that_is_down_is_named_too(told: Told) -> None:
    answer = told("sessions", "list", broker_url="redis://127.0.0.1:1/0")
    one_sentence(answer, DOWN, "or the broker at redis://127.0.0.1:1/0", "ORCHESTRATOR_BROKER_URL")


def test_a_replica_is_told_from_a_primary(told: Told, make_server: MakeServer) -> None:
    primary, replica = make_server("valkey"), make_server("valkey")
    with redis.Redis.from_url(replica.url) as client:
        client.replicaof("127.0.0.1", str(primary.port))
    one_sentence(told("sessions", "list", url=replica.url), DOWN, "Name the primary in ORCHESTRATOR_URL")


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_who_only_looks_starts_no_server(words: tuple[str, ...], told: Told, here: Path) -> None:
    one_sentence(told(*words, url="local:.orchestrator"), DOWN, "none runs", "orchestrator dev")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("words", [*LOOKING, *STARTING], ids=" ".join)
def test_what_is_no_url_is_said(words: tuple[str, ...], told: Told) -> None:
    one_sentence(told(*words, url="http://redis:6379"), WRONG, "ORCHESTRATOR_URL=http://redis:6379", "redis://")


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    """A server that wants a password."""
    with Server("valkey").start() as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("requirepass", "right")
        yield server


@pytest.mark.parametrize("password", ["", ":wrong@"])
def test_a_wrong_password_is_told_from_a_server_that_is_down(closed: Server, password: str, told: Told) -> None:
    url = closed.url.replace("//", f"//{password}")
    one_sentence(told("sessions", "list", url=url), DOWN, "Set the right user and password in ORCHESTRATOR_URL")
    assert told("sessions", "list", url=closed.url.replace("//", "//:right@")).code == 0


def test_a_user_that_may_too_little_is_told_so(closed: Server, told: Told) -> None:
    with redis.Redis.from_url(closed.url.replace("//", "//:right@")) as client:
        client.execute_command("ACL", "SETUSER", "small", "on", ">small", "~orc:*", "+ping", "+info", "+hello")
    one_sentence(told("sessions", "list", url=closed.url.replace("//", "//small:small@")), DOWN, "rights")


@pytest.mark.parametrize("words", [("sessions", "list"), ("bench",), *STARTING], ids=" ".join)
def test_a_redis_that_evicts_is_refused(words: tuple[str, ...], told: Told, make_server: MakeServer) -> None:
    server = make_server("valkey", "--maxmemory-policy", "allkeys-lru")
    one_sentence(told(*words, url=server.url), WRONG, "allkeys-lru", "noeviction")


@pytest.mark.parametrize("words", OF_A_SESSION, ids=" ".join)
def test_what_is_no_session_id_is_said_without_asking_redis(words: tuple[str, ...], told: Told) -> None:
    one_sentence(
        told(*words, "nonsense", url="redis://127.0.0.1:1/0"), WRONG, "nonsense is no session id", "sessions list"
    )


@pytest.mark.parametrize("words", OF_A_SESSION, ids=" ".join)
def test_a_session_that_is_not_there_is_said(words: tuple[str, ...], told: Told) -> None:
    one_sentence(told(*words, SESSION), WRONG, SESSION)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_library\n", "line 1: ModuleNotFoundError: No module named 'no_such_library'"),
        ("import os\n\nnothing.here()\n", "line 3: NameError: name 'nothing' is not defined"),
        ("def x(:\n", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit('bye')\n", "line 1: SystemExit: bye"),
        ("from orchestrator import App\napp = App([])\n", "The App has no agent. Write App(agents=[Agent(...)])."),
    ],
    ids=["library", "name", "syntax", "exit", "our own error"],
)
@pytest.mark.parametrize("verb", ["dev", "worker", "web"])
def test_a_module_that_breaks_is_named_with_the_place(verb: str, text: str, said: str, told: Told, here: Path) -> None:
    name = f"broken_{abs(hash(text))}_{verb}"
    (here / f"{name}.py").write_text(text)
    one_sentence(
        told(verb, f"{name}:app", "--processes" if verb == "worker" else "--port", "1" if verb == "worker" else "0"),
        WRONG,
        said,
    )


@pytest.mark.parametrize("verb", ["dev", "web"])
def test_a_port_that_is_taken_is_said_before_anything_starts(verb: str, told: Told, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        one_sentence(told(verb, APP, "--port", port, url=f"local:{tmp_path}/data"), WRONG, f"Port {port}", "--port")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("verb", ["dev", "web"])
def test_a_key_that_is_no_entry_is_said_before_anything_starts(verb: str, told: Told, tmp_path: Path) -> None:
    answer = told(verb, APP, "--port", "0", url=f"local:{tmp_path}/data", api_keys="orc_topsecret")
    one_sentence(answer, WRONG, "Entry 1 of ORCHESTRATOR_API_KEYS", "keys new")
    assert "topsecret" not in answer.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wroker",), ("No such command 'wroker'", "worker", "orchestrator --help")),
        (("sessions",), ("Missing command", "orchestrator sessions --help")),
        (("sessions", "show"), ("Missing argument 'ID'", "orchestrator sessions show --help")),
        (("worker", "--proceses", "2"), ("No such option", "--processes")),
        (("worker", "--processes", "0"), ("--processes", "greater than or equal to 1")),
        (("worker", "--pool", "gevent"), ("--pool", "'threads', 'prefork'")),
        (("web", "--port", "70000"), ("--port", "65535")),
        (("sessions", "list", "--status", "busy"), ("'busy' is no status", "waiting_for_input")),
        (("sessions", "list", "--after", "x.y"), ("x.y is no place",)),
        (("keys", "new", "A B"), ("'A B' is no name for a key",)),
        (("bench", "--seconds", "600"), ("--seconds", "15")),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_a_command_that_is_written_wrongly_says_where_to_look(
    words: tuple[str, ...], said: tuple[str, ...], told: Told
) -> None:
    one_sentence(told(*words), WRONG, *said)


def test_a_setting_that_is_wrong_is_named(told: Told) -> None:
    one_sentence(
        told("sessions", "list", lease_seconds="soon"), WRONG, "ORCHESTRATOR_LEASE_SECONDS='soon' is no number"
    )


def test_a_project_file_that_cannot_be_read_is_named(told: Told, here: Path) -> None:
    (here / "pyproject.toml").write_text("[tool.orchestrator\n")
    one_sentence(told("sessions", "list"), WRONG, "pyproject.toml cannot be read", "ORCHESTRATOR_APP")
    (here / "pyproject.toml").write_text("[tool.orchestrator]\napp = 3\n")
    one_sentence(told("sessions", "list"), WRONG, "tool.orchestrator.app is no text")


@pytest.mark.parametrize("made", ["file", "full"])
def test_init_leaves_alone_what_is_there(made: str, told: Told, here: Path) -> None:
    place = here / "shop"
    if made == "full":
        place.mkdir()
        (place / "mine.txt").touch()
    else:
        place.touch()
    before = sorted(here.rglob("*"))
    one_sentence(told("init", "shop"), WRONG, str(place), "new or empty")
    assert sorted(here.rglob("*")) == before


def test_a_local_server_that_runs_is_used_and_left_alone(told: Told, here: Path) -> None:
    try:
        local.resolve("local:.orchestrator")
        assert told("sessions", "list", url="local:.orchestrator").code == 0
    finally:
        local.stop(".orchestrator")
