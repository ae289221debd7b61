#!/usr/bin/env python3
"""Set up, run and test Headrace from a checkout. Standard library only.

python3 dev.py run     the app on the bundled demo model; where there is no display, its server
python3 dev.py test    lint, types and tests; --full adds the slow suites
python3 dev.py setup   only what both do first: the environment .venv and what it holds
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Ctrl-C while the modules below load needs no traceback; main() has its own words for it.
    sys.excepthook = lambda kind, error, trace: (
        print("\ndev.py: interrupted.", file=sys.stderr)
        if kind is KeyboardInterrupt
        else sys.__excepthook__(kind, error, trace)
    )

if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    sys.exit(
        "Headrace needs Python 3.11 to 3.14 (PyTorch has builds for these); this is Python "
        + ".".join(str(part) for part in sys.version_info[:3])
        + ". Start dev.py with another one, for example: python3.12 dev.py run"
    )

import argparse
import contextlib
import io
import json
import os
import platform
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from app.core import startup
from installers.environment import ROOT, VENV, setup, venv_python
from installers.system_libraries import Trouble, ensure_libraries, say

FULL_RESULTS = ROOT / "docs" / "full-test-results.md"
PLAIN_TIMES = VENV / "plain-test-times.txt"
"""Of the last plain run that passed: a full run puts them on its page."""
DEFAULT_PORT = 11711
STEP_END_SECONDS = 15.0
"""Time that an interrupted pytest gets to take down its fixtures."""


# --- run ---------------------------------------------------------------------------------------


def run(arguments: list[str]) -> int:
    setup()
    platform = startup.qt_platform(os.environ)
    if platform and sys.platform == "linux":
        with contextlib.suppress(Trouble):  # whatever is still missing is told just below
            ensure_libraries(platform)
    if problem := window_problem():
        say(f"{problem}\nServing without a window.")
        return serve(arguments)
    return run_app(arguments)


def window_problem() -> str:
    """Why the app cannot open its window here, in its own words; empty when it can."""
    code = "from app.core import startup; print(startup.reason())"
    command = [str(venv_python()), "-c", code]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return outcome.stdout.strip() or outcome.stderr.strip()


def run_app(arguments: list[str]) -> int:
    command = [str(venv_python()), "-m", "app.cli", *arguments]
    if os.name == "posix":
        os.chdir(ROOT)
        sys.stdout.flush()
        os.execv(command[0], command)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def stop_on_signal(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def serve(arguments: list[str]) -> int:
    """Start the server, print one answer of the demo model, stay until Ctrl-C or SIGTERM."""
    command = [str(venv_python()), "-m", "engine.cli", "serve", "--model", "demo"]
    # What is printed here says what goes well; the log adds what does not.
    command += ["--owner-pid", str(os.getpid()), "--log-level", "warning", *arguments]
    chosen = any(argument.split("=")[0] == "--port" for argument in arguments)
    if not chosen and port_is_taken(DEFAULT_PORT):
        say(f"Port {DEFAULT_PORT} is taken: letting the system pick another one.")
        command += ["--port", "0"]
    started = time.monotonic()
    # A group of its own: Ctrl-C reaches this process alone, which then ends the server in order.
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=os.name == "posix"
    )
    try:
        endpoint = await_endpoint(server)
        await_ready(server, endpoint)
        say(f"The model answers {time.monotonic() - started:.1f} s after the start.")
        say(f"\nOpenAI:    {endpoint}/v1/chat/completions\nAnthropic: {endpoint}/v1/messages\n")
        try:
            print_answer(endpoint, "What is the capital of France?")
        except OSError as error:  # an option given here can ask for a key, say
            say(f"No answer was printed: {error}")
        say("\nCtrl-C ends Headrace.")
        code = server.wait()
        say(ended_words(code))
        return code if code >= 0 else 128 - code
    except KeyboardInterrupt:
        say("\nEnding Headrace.")
        return 0
    finally:
        end_process(server)


def ended_words(code: int) -> str:
    """How the server ended, by its exit status: minus a signal's number where it was killed."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = " or the system ran out of memory" if name == "SIGKILL" else ""
        return f"The server was ended from outside by {name}: somebody did so{why}."
    if code == 0:
        return "The server was asked to end, and has."
    return f"The server ended with exit code {code}; its lines above say why."


def end_process(process: subprocess.Popen[str], patience: float = 15.0) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_is_taken(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def ask(url: str, body: dict[str, Any] | None = None, seconds: float = 30.0) -> Any:
    """The response to a GET, or to a POST of JSON. A proxy in the environment is left out."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=seconds)


def await_endpoint(server: subprocess.Popen[str]) -> str:
    """The address in the server's one line `Headrace listens on http://HOST:PORT`."""
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if "http://" in line:
            return line[line.index("http://") :].strip()
    raise Trouble(f"The server ended (code {server.wait()}); its lines above say why.")


def await_ready(server: subprocess.Popen[str], endpoint: str, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with ask(f"{endpoint}/health"):
                return
        except urllib.error.HTTPError as error:
            with error:
                health = json.loads(error.read() or b"{}")
            if health.get("status") == "failed":
                raise Trouble("The model did not load; the line above says why.") from None
        except OSError:
            pass  # it has printed its address and does not accept yet
        time.sleep(0.1)
    raise Trouble("The server ended or did not get ready in time; its lines above say why.")


def print_answer(endpoint: str, question: str) -> None:
    with ask(f"{endpoint}/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    say(f"> {question}")
    body = {"model": model, "stream": True, "max_tokens": 80, "temperature": 0}
    body["messages"] = [{"role": "user", "content": question}]
    with ask(f"{endpoint}/v1/chat/completions", body, seconds=300.0) as response:
        for piece in streamed_text(response):
            print(piece, end="", flush=True)
    say("")


def streamed_text(lines: Iterable[bytes]) -> Iterator[str]:
    """The text of a server-sent stream of OpenAI chat chunks."""
    for line in lines:
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        record = json.loads(data)
        if "error" in record:
            raise Trouble(f"The server broke off: {record['error'].get('message')}")
        for choice in record.get("choices", []):
            delta = choice.get("delta", {})
            yield (delta.get("reasoning_content") or "") + (delta.get("content") or "")


# --- test --------------------------------------------------------------------------------------


def test(arguments: list[str], *, full: bool) -> int:
    setup()
    ensure_libraries("offscreen")
    results, left_out = VENV / "full-results.xml", VENV / "full-left-out.json"
    for record in (results, left_out):
        record.unlink(missing_ok=True)
    records = ["--full", f"--junit-xml={results}", f"--left-out={left_out}"]
    # A full run counts what each suite takes, one after the other.
    beside = [] if full or arguments else ["-n", str(test_processes()), "--dist", "worksteal"]
    suite = ["pytest", *beside, *(records if full else []), *arguments]
    steps = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], suite]
    failed = []
    timings = []
    for step in steps:
        name = " ".join(step[:2]).rstrip(" .") if step[0] == "ruff" else step[0]
        say(f"\n== {name}")
        started = time.monotonic()
        code = run_step([str(venv_python()), "-m", *step])
        timings.append(f"{name} {time.monotonic() - started:.0f} s")
        if code:
            failed.append(name)
    if full and results.exists() and left_out.exists():  # else pytest has refused its arguments
        FULL_RESULTS.write_text(full_page(results, left_out), encoding="utf-8")
        say(f"Wrote {FULL_RESULTS.relative_to(ROOT)}")
    if not (full or arguments or failed):
        PLAIN_TIMES.write_text(f"{today()}: {', '.join(timings)}", encoding="utf-8")
    say(f"Took {', '.join(timings)}.")
    say(f"Failed: {', '.join(failed)}." if failed else "Lint, types and tests are in order.")
    return 1 if failed else 0


def test_processes() -> int:
    """One more than there are CPUs, up to 4: a suite that waits for a program leaves one idle."""
    return min((os.cpu_count() or 1) + 1, 4)


def run_step(command: list[str]) -> int:
    """The exit code. Ctrl-C reaches the step too, which gets time to end what it has started.

    Bytecode is kept whatever the environment says: the suites start the engine hundreds of times.
    """
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    step = subprocess.Popen(command, cwd=ROOT, env=environment, text=True)
    try:
        return step.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(STEP_END_SECONDS)
        end_process(step)
        raise


def today() -> str:
    """The day and the commit, as results name them."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return f"{time.strftime('%Y-%m-%d')}, commit {commit.strip() or 'unknown'}"


def full_page(results: Path, left_out: Path) -> str:
    """A short page about one full run: a table with a row for each folder of tests/."""
    python = f"Python {platform.python_version()}"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {python}"
    lines = [
        "# Results of the last full test run",
        "",
        f"Written by `python3 dev.py test --full`: {today()}, {machine}.",
        "",
        "| suite | passed | failed | skipped | left out | seconds |",
        "|---|---|---|---|---|---|",
        *full_rows(results, left_out),
        "",
        "Left out are tests that this machine is not for: `gpu` where there is no CUDA device.",
    ]
    if PLAIN_TIMES.exists():
        plain = PLAIN_TIMES.read_text(encoding="utf-8")
        lines += ["", f"The last plain `python3 dev.py test` in this folder, {plain}."]
    return "\n".join(lines) + "\n"


def full_rows(results: Path, left_out: Path) -> Iterator[str]:
    rows: dict[str, list[float]] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        parts = (case.get("classname") or "").split(".")
        row = rows.setdefault(parts[1] if len(parts) > 1 else "(collection)", [0.0, 0, 0, 0])
        row[0] += float(case.get("time") or 0)
        bad = case.find("failure") is not None or case.find("error") is not None
        row[2 if bad else 3 if case.find("skipped") is not None else 1] += 1
    out: dict[str, str] = {}
    for suite, marker, count in json.loads(left_out.read_text(encoding="utf-8")):
        out[suite] = f"{out[suite]}, " if suite in out else ""
        out[suite] += f"{count} ({marker})"
    for name in sorted({*rows, *out}):
        seconds, passed, bad_count, skipped = rows.get(name, [0.0, 0, 0, 0])
        counts = f"{passed:.0f} | {bad_count:.0f} | {skipped:.0f} | {out.get(name, '0')}"
        yield f"| {name} | {counts} | {seconds:.1f} |"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="dev.py",
        description="Set up, run and test Headrace from a checkout. The first start makes the "
        "environment .venv, which takes minutes; later ones take it as it is.",
        epilog="`python3 dev.py VERB --help` tells about each.",
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs")

    def verb(name: str, more: str, summary: str, description: str) -> argparse.ArgumentParser:
        usage = f"dev.py {name} [-h] {more}".rstrip()
        return verbs.add_parser(
            name, usage=usage, help=summary, description=description, allow_abbrev=False
        )

    verb(
        "setup",
        "",
        "make the environment .venv",
        "Make the environment .venv with the CPU kernels, and nothing else. Kernels that could not "
        "be compiled are tried again, which the other verbs do not do.",
    )
    verb(
        "run",
        "[OPTION ...]",
        "start the app, or its server where there is no display",
        "Start the app. Where no window can open, start its server on the bundled demo model "
        "instead, print an answer, and stay until Ctrl-C. Further options go to the app (such as "
        "--hidden) or to the server (such as --port 0, --model PATH, --device cpu): "
        "`.venv/bin/headrace --help` and `.venv/bin/headrace serve --help` list them.",
    )
    tests = verb(
        "test",
        "[--full] [ARGUMENT ...]",
        "lint, types and tests; other arguments go to pytest",
        "Run ruff, mypy and pytest, and say what failed. Further arguments go to pytest, such as "
        "tests/server -k stream.",
    )
    tests.add_argument(
        "--full",
        action="store_true",
        help="the slow suites too; writes docs/full-test-results.md",
    )
    return top


def main(argv: Sequence[str]) -> int:
    own = parser()
    known, rest = own.parse_known_args(argv)
    for stream in (sys.stdout, sys.stderr):  # a narrow console shows what it can of an answer
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop_on_signal)
    try:
        if known.verb == "run":
            return run(rest)
        if known.verb == "test":
            return test(rest, full=known.full)
        if rest:
            own.error(f"unknown arguments: {' '.join(rest)}")
        setup(again=True)
        return 0
    except Trouble as trouble:
        print(f"dev.py: {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndev.py: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
