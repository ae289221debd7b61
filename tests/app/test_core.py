"""The small parts of app/core."""

import ast
import graphlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from app.core import close_policy, launch, log_file, memory_view, server_record, startup, units
from app.core.close_policy import CloseStep
from app.core.completion import (
    CallPiece,
    error_message,
    parse_efforts,
    parse_event,
    request_body,
)
from app.core.conversation import ChatSettings, Conversation, MessageState
from app.core.health import Health, describe_progress, parse
from app.core.history import History
from app.core.server_record import ServerRecord
from app.core.settings import Settings
from app.core.sse import EventParser
from engine import processes
from engine.messages import Stats
from tests.app.conftest import wait_until


def test_core_and_cli_import_neither_qt_nor_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, app.core, app.cli\n"
        "for m in pkgutil.iter_modules(app.core.__path__):\n"
        "    importlib.import_module('app.core.' + m.name)\n"
        "assert not {'PySide6', 'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_circle_of_imports() -> None:
    """Imports for types and inside functions count, too."""
    root = Path(launch.__file__).parents[2]
    names = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in (root / "app").rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for name, path in names.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        imports[name] = found & names.keys()
    assert imports["app.ui.theme"] >= {"app.ui.icons", "app.ui.stylesheet"}
    list(graphlib.TopologicalSorter(imports).static_order())  # raises CycleError, which names it


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_events_come_whole_from_any_pieces(step: int) -> None:
    stream = ": hi\r\n\r\ndata: eins\r\n\r\nevent: x\ndata: a\ndata: ä\n\ndata:\n\rdata: [DONE]\n\n"
    raw = stream.encode()
    parser = EventParser()
    events = [e for at in range(0, len(raw), step) for e in parser.feed(raw[at : at + step])]
    assert [(e.name, e.data) for e in events] == [
        ("", "eins"),
        ("x", "a\nä"),
        ("", ""),
        ("", "[DONE]"),
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (units.size(0), "0 B"),
        (units.size(1023.9), "1.00 KiB"),
        (units.size(1536 * 2**20), "1.50 GiB"),
        (units.storage(18_086_961_920), "18.1 GB"),
        (units.rate(54.4e9), "54.4 GB/s"),
        (units.duration(0.3404), "340 ms"),
        (units.duration(0.9999), "1.00 s"),
        (units.duration(59.96), "1 min"),
        (units.duration(125), "2 min 5 s"),
        (units.duration(12000), "3 h 20 min"),
        (units.uptime(43.9), "43 s"),
        (units.uptime(61), "1 min 1 s"),
        (units.count(12345), "12,345"),
        (units.count(4_500_000), "4.5 M"),
        (units.speed(8.416), "8.42"),
        (units.speed(136.6), "137"),
        (units.percent(0.99991), "99.9 %"),
        (units.percent(1), "100 %"),
    ],
)
def test_units(text: str, wanted: str) -> None:
    assert text == wanted


@pytest.mark.parametrize(
    ("number", "counted", "times"),
    [
        (0, "0 tokens", "0 times"),
        (1, "1 token", "once"),
        (2, "2 tokens", "twice"),
        (12345, "12,345 tokens", "12,345 times"),
    ],
)
def test_counts_in_words(number: int, counted: str, times: str) -> None:
    assert (units.counted(number, "token"), units.times(number)) == (counted, times)


def test_history_keeps_the_newest() -> None:
    history = History(3)
    for value in (5, 1, 2, 3):
        history.add(value)
    assert history.values == (1, 2, 3)
    assert (history.newest, history.highest) == (3, 3)
    with pytest.raises(ValueError, match="at least 2"):
        History(1)


class TestConversation:
    def test_a_turn(self) -> None:
        chat = Conversation()
        chat.ask(" hello ")
        assert chat.for_request() == [{"role": "user", "content": "hello"}]
        chat.append("Hi", reasoning="greet")
        chat.append(".")
        chat.finish("2 tokens")
        assert chat.for_request()[1] == {"role": "assistant", "content": "Hi."}
        assert chat.messages[1].note == "2 tokens"

    def test_out_of_turn(self) -> None:
        chat = Conversation()
        with pytest.raises(ValueError, match="some text"):
            chat.ask("  ")
        with pytest.raises(ValueError, match="no finished answer"):
            chat.retry()
        chat.ask("x")
        with pytest.raises(ValueError, match="still being written"):
            chat.ask("y")

    def test_stop_keeps_the_text_and_drops_late_pieces(self) -> None:
        chat = Conversation()
        chat.ask("x")
        chat.append("half")
        chat.stop()
        chat.append(" late")
        assert chat.messages[-1].text == "half"
        assert chat.messages[-1].state is MessageState.STOPPED

    def test_a_failed_turn_is_not_sent_again(self) -> None:
        chat = Conversation()
        chat.ask("first")
        chat.fail("broke")
        chat.ask("second")
        assert chat.for_request() == [{"role": "user", "content": "second"}]

    def test_retry_writes_the_answer_again(self) -> None:
        chat = Conversation()
        chat.ask("x")
        chat.fail("broke")
        chat.retry()
        assert chat.answer is chat.messages[-1]
        assert chat.for_request() == [{"role": "user", "content": "x"}]


def test_completion_events() -> None:
    delta = parse_event('{"choices":[{"delta":{"content":"a","reasoning_content":"b"}}]}')
    assert (delta.text, delta.reasoning) == ("a", "b")
    assert parse_event('{"choices":[{"finish_reason":"length"}]}').finish_reason == "length"
    assert parse_event('{"choices":[],"usage":{"completion_tokens":7}}').completion_tokens == 7
    assert parse_event('{"error":{"message":"m","hint":"h"}}').error == "m. h"
    for broken in ("{", "[]"):
        with pytest.raises(ValueError, match="broken"):
            parse_event(broken)
    calls = parse_event(
        '{"choices":[{"delta":{"tool_calls":[{"index":1,"function":{"name":"f","arguments":"{"}}]}}]}'
    ).calls
    assert calls == (CallPiece(1, "f", "{"),)
    with pytest.raises(ValueError, match="wrong index"):
        parse_event('{"choices":[{"delta":{"tool_calls":[{"index":-1}]}}]}')
    assert parse_efforts(b'{"data":[{"id":"m","reasoning_efforts":["low"]}]}') == ("low",)
    assert parse_efforts(b'{"data":[{"id":"m"}]}') == parse_efforts(b"<html>") == ()
    asked = ChatSettings(temperature=0.0, effort="low", system="not here")
    sent = msgspec.json.decode(request_body("demo", [], asked, go_on=True))
    assert (sent["temperature"], sent["reasoning_effort"]) == (0.0, "low")
    assert sent["continue_final_message"] and "top_p" not in sent and "max_tokens" not in sent
    body = msgspec.json.decode(request_body("demo", [{"role": "user", "content": "x"}]))
    assert body["stream"] and body["model"] == "demo"
    assert error_message(b"<html>", "fallback") == "fallback"
    assert error_message(b'{"error":{"message":"too long"}}', "") == "too long"


def test_health() -> None:
    health = parse(b'{"status":"loading","phase":"reading","done":1,"total":4,"unknown":[]}')
    assert describe_progress(health) == "Reading the model, 25 %"
    assert describe_progress(Health(phase="warming")) == "Warming up"
    with pytest.raises(ValueError, match="not a Headrace health record"):
        parse(b"<html>")


class TestServerRecord:
    def record(self, **changes: object) -> ServerRecord:
        me = psutil.Process()
        record = ServerRecord(pid=me.pid, started=me.create_time(), argv=me.cmdline())
        return msgspec.structs.replace(record, **changes)

    def test_the_same_process(self) -> None:
        assert server_record.is_running(self.record())

    def test_only_the_interpreter_is_spelled_otherwise(self) -> None:
        argv = ["/other/python", *psutil.Process().cmdline()[1:]]
        assert server_record.is_running(self.record(argv=argv))

    @pytest.mark.parametrize(
        "changes", [{"started": 1.0}, {"argv": ["headrace", "serve"]}, {"argv": []}]
    )
    def test_a_reused_pid(self, changes: dict[str, object]) -> None:
        assert not server_record.is_running(self.record(**changes))
        assert not server_record.end_process(self.record(**changes))

    def test_a_process_that_ended(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        process = psutil.Process(child.pid)
        wait_until(lambda: bool(process.cmdline()))  # there is none between fork and exec
        record = ServerRecord(pid=child.pid, started=process.create_time(), argv=process.cmdline())
        assert server_record.end_process(record)
        # Ended, but not waited for: it is a zombie now.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not server_record.is_running(record)
        child.wait()

    def test_whose_it_is(self) -> None:
        parent = psutil.Process().parent()
        assert parent is not None
        start = processes.start_of(parent.pid)
        assert start is not None
        alive = self.record(
            owner_pid=parent.pid,
            owner_started=start.wall,
            owner_started_since_boot=start.since_boot,
        )
        assert not alive.orphaned
        earlier = {
            "owner_started": start.wall - 100,
            # The parent may be the first process of all, which started with the system.
            "owner_started_since_boot": abs(start.since_boot - 100),
        }
        assert msgspec.structs.replace(alive, **earlier).orphaned  # its pid was used again
        assert self.record(owner_pid=parent.pid).orphaned  # it was gone when the server started
        assert self.record(owner_pid=os.getpid(), owner_started=1.0).orphaned
        assert not self.record().orphaned  # by hand

    def test_a_broken_file(self, home: Path) -> None:
        assert server_record.running_servers() == []
        (home / "servers").mkdir()
        (home / "servers" / "1.json").write_text("{")
        assert server_record.running_servers() == []

    @pytest.mark.parametrize(
        ("host", "url"),
        [("0.0.0.0", "http://127.0.0.1:5"), ("::1", "http://[::1]:5"), ("::", "http://[::1]:5")],
    )
    def test_url(self, host: str, url: str) -> None:
        assert self.record(host=host, port=5).url == url


class TestLogFile:
    def test_rotation_keeps_a_writer_going(self, tmp_path: Path) -> None:
        path = tmp_path / "server.log"
        with path.open("a") as writer:
            for number in range(5):
                writer.write(f"{number}" * 30 + "\n")
                writer.flush()
                assert log_file.rotate(path, max_bytes=20, kept=2)
            writer.write("after\n")
        assert path.read_text() == "after\n"
        assert (tmp_path / "server.log.1").read_text() == "4" * 30 + "\n"
        assert not (tmp_path / "server.log.3").exists()
        assert not log_file.rotate(path)

    def test_tail(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        tail = log_file.LogTail(path)
        assert tail.read_new() == ([], False)
        path.write_bytes(b"one\ntwo\r\nthr")
        assert tail.read_new() == (["one", "two"], False)
        with path.open("ab") as more:
            more.write(b"ee\n\xff\n")
        assert tail.read_new() == (["three", "\ufffd"], False)
        path.write_bytes(b"new\n")
        assert tail.read_new() == (["new"], True)


class TestLaunch:
    def test_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        command = launch.serve_command(Settings(device="sim", moe_cache_rate=0.25, port=0), 7)
        text = " ".join(command)
        assert text.startswith(f"{sys.executable} -m engine.cli serve --model demo --port 0")
        assert "--device sim --moe-cache-rate 0.25 --owner-pid 7" in text
        assert "--context" not in text
        monkeypatch.setenv("HEADRACE_DEBUG_OWNER_GRACE", "1.5")
        command = launch.serve_command(Settings(context_tokens=4096), 7)
        assert "--context 4096 --owner-pid 7 --owner-grace 1.5" in " ".join(command)

    def test_the_key_goes_by_a_file_that_only_its_user_reads(self, home: Path) -> None:
        chosen = Settings(api_key="K3y-of-mine")
        launch.write_key(chosen)
        command = launch.serve_command(chosen, 7)
        file = Path(command[command.index("--api-key-file") + 1])
        assert file.read_text(encoding="utf-8") == "K3y-of-mine"
        assert sys.platform == "win32" or file.stat().st_mode & 0o777 == 0o600
        assert "K3y-of-mine" not in " ".join(command)
        launch.write_key(Settings())
        assert list(home.iterdir()) == []
        assert "--api-key-file" not in launch.serve_command(Settings(), 7)

    def test_only_demo_is_the_bundled_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "me"))
        for model, wanted in {
            "demo": "demo",
            "./demo": str(tmp_path / "demo"),
            "demo/": str(tmp_path / "demo"),
            "models/x.gguf": str(tmp_path / "models" / "x.gguf"),
            "~/demo": str(tmp_path / "me" / "demo"),
            "~nobody-of-this-name/demo": str(tmp_path / "~nobody-of-this-name" / "demo"),
        }.items():
            command = launch.serve_command(Settings(model=model), 7)
            assert command[command.index("--model") + 1] == wanted

    def test_reasons(self, tmp_path: Path) -> None:
        log = tmp_path / "x.log"
        log.write_text("old words\nport 5 is taken\n\n")
        assert "SIGKILL" in launch.ending(-signal.SIGKILL, log).reason
        assert launch.ending(3, log).reason.endswith("code 3. It last said: port 5 is taken")
        assert launch.ending(3, log, log.stat().st_size).reason.endswith("code 3.")
        assert "by itself" in launch.ending(0, tmp_path / "none").reason
        log.write_text("12:00:00 INFO x: y\nerror: Port 5 is in use.\nhint: Take another.\n")
        refusal = launch.Ending("Port 5 is in use.", "Take another.", refused=True)
        assert launch.ending(3, log) == refusal
        log.write_text("12:00:00 error: Port 5 is in use.\n12:00:00 hint: Take another.\n")
        assert launch.ending(3, log) == refusal

    def test_a_server_has_a_session_of_its_own(self, tmp_path: Path) -> None:
        code = "import os; print(os.getsid(0), os.getpid())"
        log = tmp_path / "logs" / "s.log"
        server = launch.ServerProcess([sys.executable, "-c", code], log)
        wait_until(lambda: server.exit_code() is not None)
        session, pid = log.read_text().split()
        assert session == pid == str(server.pid)


@pytest.mark.parametrize(
    ("setting", "tray", "step"),
    [
        ("ask", True, CloseStep.ASK),
        ("ask", False, CloseStep.ASK),
        ("hide", True, CloseStep.HIDE),
        ("hide", False, CloseStep.MINIMISE),
        ("quit", True, CloseStep.QUIT),
        ("quit", False, CloseStep.QUIT),
    ],
)
def test_close_policy(setting: str, tray: bool, step: CloseStep) -> None:
    assert close_policy.on_close(setting, tray=tray) is step  # type: ignore[arg-type]


def test_memory_owners_add_up() -> None:
    stats = Stats(
        ram_total_bytes=100,
        ram_available_bytes=30,
        ram_dense_bytes=10,
        ram_expert_store_bytes=20,
        ram_runtime_bytes=35,
    )
    owners = {owner.key: owner.bytes for owner in memory_view.host_memory(stats)}
    assert owners["workspace"] == 5
    assert owners["other"] == 35
    assert sum(owners.values()) == 70
    assert not memory_view.has_device_memory(stats)


class TestStartup:
    def test_missing_libraries_are_named_with_their_packages(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def load(name: str) -> object:
            if name in ("libxcb-cursor.so.0", "libEGL.so.1"):
                raise OSError(name)
            return object()

        missing = startup.missing_libraries("xcb", load)
        assert missing == {"libEGL.so.1": "libegl1", "libxcb-cursor.so.0": "libxcb-cursor0"}
        assert startup.missing_libraries("offscreen", load) == {"libEGL.so.1": "libegl1"}
        monkeypatch.setattr(startup, "missing_libraries", lambda _: missing)
        sentence = startup.problem({"DISPLAY": ":0"})
        assert "apt install libegl1 libxcb-cursor0" in sentence
        assert "libxcb-cursor.so.0" in sentence

    @pytest.mark.skipif(sys.platform != "linux", reason="displays are asked for on Linux only")
    def test_no_display(self) -> None:
        # The command stands in quotes where its path has a space.
        assert re.search(r'headrace"? serve --model demo', startup.problem({}))
        assert startup.problem({"QT_QPA_PLATFORM": "offscreen"}) == ""

    @pytest.mark.skipif(sys.platform != "linux", reason="X is on Linux only")
    def test_an_x_server_that_is_not_there(self) -> None:
        code = "from app.core import startup; print(startup.problem())"
        environment = {**os.environ, "DISPLAY": ":4711"}
        environment.pop("QT_QPA_PLATFORM")
        environment.pop("WAYLAND_DISPLAY", None)
        said = subprocess.run(
            [sys.executable, "-c", code], env=environment, check=True, capture_output=True
        ).stdout.decode()
        assert "cannot be reached" in said or "lacks" in said

    def test_a_release_of_qt_that_crashes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(startup, "_qt_version", lambda: (6, 12, 0))
        monkeypatch.setattr(startup.sys, "version_info", (3, 11, 7))
        assert "6.11" in startup.problem({"QT_QPA_PLATFORM": "offscreen"})
        monkeypatch.setattr(startup.sys, "version_info", (3, 12, 0))
        assert startup.problem({"QT_QPA_PLATFORM": "offscreen"}) == ""
