"""`--record`: what a line holds, who may read it, and what is never in it; and the logs without."""

from __future__ import annotations

import gzip
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine import api_keys
from engine.errors import InvalidRequest
from engine.server.recording import Recorder, Recording
from tests.server.raw import connect, head, post
from tests.server.running import frames, headrace, running, wait_for
from tests.server.speaking import HERMES, Speaker, speaking

MARKER = "flibbertigibbet"
KEY = "Key-of-the-command-line"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "requests.jsonl"
    path.touch(0o644)
    return path


@pytest.fixture(scope="module")
def recorded(
    tiny_model: Path, file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Speaker]:
    folder = tmp_path_factory.mktemp("recorded")
    options = ("--record", str(file), "--api-key", KEY)
    with speaking(tiny_model, folder, HERMES, *options) as speaker:
        speaker.server.http.headers["x-api-key"] = KEY
        speaker.openai.api_key = KEY
        speaker.anthropic.api_key = KEY
        yield speaker


def newest(file: Path, lines: int) -> Any:
    """The last line, once there are so many: it is written when the answer has been read."""
    wait_for(lambda: len(file.read_bytes().splitlines()) >= lines, 10, "recorded")
    return json.loads(file.read_bytes().splitlines()[-1])


def count(file: Path) -> int:
    return len(file.read_bytes().splitlines())


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_has_what_replays_need(recorded: Speaker, file: Path, stream: bool) -> None:
    before, began = count(file), time.time()
    recorded.says("Hello there")
    body = {
        "model": recorded.model,
        "messages": [{"role": "user", "content": f"say {MARKER} ü"}],
        "stream": stream,
    }
    http = recorded.server.http
    if stream:
        with http.stream("POST", "/v1/chat/completions?beta=1", json=body) as response:
            assert list(frames(response))[-1] == "[DONE]"
    else:
        text = b"\xef\xbb\xbf" + json.dumps(body, indent=2).encode()
        headers = {"Content-Encoding": "gzip"}
        url = "/v1/chat/completions"
        assert http.post(url, content=gzip.compress(text), headers=headers).status_code == 200
    line = newest(file, before + 1)
    assert count(file) == before + 1
    assert line["endpoint"] == "/v1/chat/completions" and line["body"] == body
    assert began - 1 <= line["time"] <= time.time()
    assert line["status"] == 200 and line["complete"]
    (answer,) = line["generations"]
    assert answer["prompt_token_ids"] == recorded.asked()["tokens"]
    assert answer["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert answer["output_token_ids"] == recorded.tokenizer.encode("Hello there").ids
    assert answer["completion_tokens"] == len(answer["output_token_ids"])
    assert (answer["cached_tokens"], answer["finish_reason"]) == (2, "stop")
    times = [answer["submitted_s"], answer["first_token_s"], answer["end_s"], line["total_s"]]
    assert times == sorted(times)


def test_every_protocol_is_recorded(recorded: Speaker, file: Path) -> None:
    before = count(file)
    recorded.says("fine")
    recorded.anthropic.messages.create(
        model=recorded.model, max_tokens=9, messages=[{"role": "user", "content": "hi"}]
    )
    recorded.openai.responses.create(model=recorded.model, input="hi")
    recorded.openai.completions.create(model=recorded.model, prompt=["a", "b"], n=2)
    recorded.server.http.post("/v1/tokenize", json={"content": "x"})
    recorded.openai.models.list()
    newest(file, before + 4)
    lines = [json.loads(line) for line in file.read_bytes().splitlines()[before:]]
    assert {line["endpoint"]: len(line["generations"]) for line in lines} == {
        "/v1/messages": 1,
        "/v1/responses": 1,
        "/v1/completions": 4,
        "/v1/tokenize": 0,
    }


def test_a_client_that_hangs_up(recorded: Speaker, file: Path) -> None:
    before = count(file)
    recorded.says("never ends", ends=False)
    body = {"model": recorded.model, "prompt": "x", "stream": True}
    with recorded.server.http.stream("POST", "/v1/completions", json=body) as response:
        assert next(frames(response))["choices"][0]["text"]
    line = newest(file, before + 1)
    assert not line["complete"] and line["generations"][0]["end_s"] is None
    assert line["generations"][0]["completion_tokens"] > 0


def test_no_secret_is_recorded(recorded: Speaker, file: Path) -> None:
    """Not in headers, queries, refused bodies, nor as words or tokens of a prompt."""
    before = count(file)
    home = recorded.server.home
    made = headrace("keys", "create", "mine", HEADRACE_HOME=str(home)).communicate()[0].strip()
    local = (home / "local-key").read_text()
    http = recorded.server.http
    recorded.says("fine")
    for number, key in enumerate((made, local, KEY)):
        for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
            prompt = f"my key is {key}, remember"
            url = f"/v1/completions?api_key={key}"
            done = http.post(url, json={"model": recorded.model, "prompt": prompt}, headers=headers)
            assert done.status_code == 200, done.text
            refused = {"model": recorded.model, "prompt": prompt, "api_key": key}
            assert http.post(url, json=refused, headers=headers).status_code == 400
        assert http.post(url, json={}, headers={"x-api-key": f"{key}x"}).status_code == 401
        newest(file, before + 4 * (number + 1))
    text = file.read_text()
    for secret in (made, local, KEY, recorded.server.file("token").read_text()):
        assert secret not in text and secret not in recorded.server.logged()
    for line in map(json.loads, text.splitlines()[before:]):
        if line["status"] == 200:
            assert line["body"]["prompt"] == "my key is ***, remember"
            (answer,) = line["generations"]
            assert answer["prompt_token_ids"] is answer["output_token_ids"] is None
            assert answer["prompt_tokens"] > 0 and answer["completion_tokens"] > 0
        else:
            assert line["status"] == 400 and line["body"] is None
    assert api_keys.PREFIX not in text


def other_key(speaker: Speaker) -> str:
    """One that no request is sent with."""
    home, name = str(speaker.server.home), f"other-{time.monotonic_ns()}"
    made = headrace("keys", "create", name, HEADRACE_HOME=home).communicate()[0].strip()
    assert api_keys.SHAPE.fullmatch(made)
    return made


def has_no_ids(line: Any) -> bool:
    return all(
        each["prompt_token_ids"] is each["output_token_ids"] is None for each in line["generations"]
    )


def test_no_key_of_anyone_is_recorded(recorded: Speaker, file: Path) -> None:
    """Made ones are known by their shape, however JSON writes them."""
    recorded.says("fine")
    token = recorded.server.file("token").read_text()
    local = (recorded.server.home / "local-key").read_text()
    for key in (other_key(recorded), local, token, KEY):
        escaped = "".join(f"\\u{ord(char):04x}" for char in key)
        call = json.dumps({"name": "f", "arguments": f'{{"key": "{escaped}"}}'})
        for turn in (
            f'{{"role": "user", "content": "key {key}"}}',
            f'{{"role": "user", "content": "key {escaped}"}}',
            f'{{"role": "user", "content": "key {key}", "content": "a later one counts"}}',
            f'{{"role": "assistant", "tool_calls": [{{"id": "1", "function": {call}}}]}}',
        ):
            before = count(file)
            body = f'{{"model": "{recorded.model}", "seed": 7, "messages": [{turn}]}}'
            done = recorded.server.http.post("/v1/chat/completions", content=body)
            assert done.status_code == 200, done.text
            line = newest(file, before + 1)
            assert line["body"]["seed"] == 7 and b"***" in file.read_bytes().splitlines()[-1]
            assert len(line["generations"]) == 1 and has_no_ids(line)
    text = file.read_text()
    assert api_keys.PREFIX not in text and token not in text and KEY not in text


def test_a_key_in_pieces_is_not_recorded(recorded: Speaker, file: Path) -> None:
    """A body that spells one over several parts, or in token ids, is left out."""
    recorded.says("fine")
    key = other_key(recorded)
    halves = [{"type": "text", "text": part} for part in (f"key {key[:20]}", f"{key[20:]} it is")]
    ids = recorded.tokenizer.encode(f"my key is {key}").ids
    turn = {"role": "user", "content": halves}
    say: dict[str, Any] = {"max_tokens": 3}
    for url, body in (
        ("/v1/chat/completions", {"messages": [turn], **say}),
        ("/v1/chat/completions", {"messages": [{**turn, "content": h["text"]} for h in halves]}),
        ("/v1/messages", {"messages": [turn], **say}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "system": halves, **say}),
        ("/v1/completions", {"prompt": [half["text"] for half in halves]}),
        ("/v1/completions", {"prompt": ids}),
        ("/v1/completions", {"prompt": ids, "max_tokens": 0}),
        ("/v1/completions", {"prompt": [ids[:9], ids[9:]]}),
        ("/v1/detokenize", {"tokens": ids}),
    ):
        before = count(file)
        sent = {"model": recorded.model, **body}
        done = recorded.server.http.post(url, json=sent)
        assert done.status_code == 200, done.text
        line = newest(file, before + 1)
        assert line["status"] == 200 and line["body"] is None and has_no_ids(line)
    assert key[20:] not in file.read_text()


def test_parts_and_token_ids_without_a_key_are_recorded(recorded: Speaker, file: Path) -> None:
    recorded.says("fine")
    parts = [{"type": "text", "text": f"{MARKER} hr-"}, {"type": "text", "text": "is no key"}]
    for url, body in (
        ("/v1/completions", {"prompt": recorded.tokenizer.encode(MARKER).ids}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]}),
    ):
        before = count(file)
        sent = {"model": recorded.model, **body}
        assert recorded.server.http.post(url, json=sent).status_code == 200
        line = newest(file, before + 1)
        assert line["body"] == sent and line["generations"][0]["prompt_token_ids"]


def test_a_slash_may_be_escaped(recorded: Speaker, file: Path) -> None:
    before, url = count(file), "/v1/completions"
    recorded.says("fine")
    token = recorded.server.file("token").read_text()
    text = f'{{"model": "{recorded.model}", "prompt": "\\/{token[:9]}\\u{ord(token[9]):04x}'
    assert recorded.server.http.post(url, content=f'{text}{token[10:]}"}}').status_code == 200
    assert newest(file, before + 1)["body"]["prompt"] == "/***"


def test_earlier_turns_are_not_recorded_as_tokens(recorded: Speaker, file: Path) -> None:
    """A key in one of them is not in the body of the next."""
    before = count(file)
    recorded.says("fine")
    ask = recorded.openai.responses.create
    first = ask(model=recorded.model, input=f"my key is {other_key(recorded)}")
    ask(model=recorded.model, input="go on", previous_response_id=first.id)
    line = newest(file, before + 2)
    assert line["body"]["input"] == "go on" and len(line["generations"]) == 1 and has_no_ids(line)
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    ask(model=recorded.model, input=[reference, {"role": "user", "content": "go on"}])
    assert has_no_ids(newest(file, before + 3))


def test_a_request_that_fails_late() -> None:
    """Its body is left out, so its tokens are."""
    record = Recording("/v1/completions")
    record.body = b'{"prompt": "' + MARKER.encode() + b'"}'
    record.generation([1, 2]).sampled(3)
    record.record.status = 503
    line = json.loads(record.line(()))
    assert line["body"] is None and has_no_ids(line)


def line_of(body: Any, secrets: Sequence[str] = ()) -> Any:
    record = Recording("/v1/completions")
    record.body = json.dumps(body).encode()
    record.record.status = 200
    return json.loads(record.line(secrets))["body"]


@pytest.mark.parametrize(
    "content",
    [
        "My folder is C:\\",
        "a\\\\",
        "\\",
        "\\u005c",
        ["C:\\", "next"],
        ["x", "C:\\"],
        "\\u00",
        "\\" * 999,
    ],
)
def test_a_backslash_at_the_end(content: Any) -> None:
    assert line_of({"content": content}) == {"content": content}


def test_a_key_after_a_backslash() -> None:
    key = "a\\key that is long"
    assert line_of({"a": f"{key}\\"}, [key]) == {"a": "***\\"}
    assert line_of({"a": json.dumps({"b": key})}, [key]) == {"a": "***"}


def test_work_on_a_body_is_bounded() -> None:
    """One that has too many escapes to be looked through is left out."""
    chain = "\\" + "u005c" * 1000  # each level of it takes away but a few characters
    for content in ("\\" + "u005c" * 200_000, [chain] * 100, "\\" * (1 << 24)):
        assert line_of({"prompt": content}) is None
    for content in ("a\n" * (1 << 19), [json.dumps("a\n" * 99)] * 999):
        assert line_of({"prompt": content}) == {"prompt": content}


def test_nobody_waits_for_the_whole_answer(recorded: Speaker, file: Path) -> None:
    before, asked = count(file), len(recorded.heard())
    recorded.says("never ends", ends=False)
    body = json.dumps({"model": recorded.model, "prompt": "x"}).encode()
    with connect(recorded.server) as connection:
        connection.sendall(post("/v1/completions", body, f"x-api-key: {KEY}"))
        wait_for(lambda: len(recorded.heard()) > asked, 20, "asked")
    line = newest(file, before + 1)
    assert len(line["generations"]) == 1 and not line["complete"]


def test_it_is_said_and_only_the_user_s(recorded: Speaker, file: Path) -> None:
    assert f"every request is recorded in {file}" in recorded.server.logged()
    if os.name != "nt":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    process = headrace("serve", "--model", "demo", "--port", "0", "--record", str(tmp_path))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and err.startswith(f"error: --record {tmp_path} cannot be")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """It is neither waited for, nor kept open, nor shut to others."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o622)
    with pytest.raises(InvalidRequest, match="cannot be written"):
        Recorder(pipe, list)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        mode = stat.S_IMODE(pipe.stat().st_mode)
        with pytest.raises(InvalidRequest, match="it is a pipe"):
            Recorder(pipe, list)
        assert stat.S_IMODE(pipe.stat().st_mode) == mode
        assert os.read(reader, 1) == b""  # nobody has it open to write
    finally:
        os.close(reader)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_full_disk_costs_the_record_and_no_answer(tiny_model: Path, tmp_path: Path) -> None:
    options = ("--device", "cpu", "--record", "/dev/full")
    with running(tiny_model, tmp_path, *options) as server:
        for _ in range(2):
            assert server.chat().status_code == 200
        assert server.logged().count("nothing more is recorded") == 1


def test_no_log_has_anything_of_a_prompt(tiny_model: Path, tmp_path: Path) -> None:
    """At the most verbose level, from server and runtime, for what is served and refused."""
    options = ("--device", "cpu", "--log-level", "debug", "--access-log")
    with running(tiny_model, tmp_path, *options) as server:
        turn = {"role": "user", "content": MARKER}
        tool = {"name": MARKER, "description": MARKER, "parameters": {"type": MARKER}}
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/v1/chat/completions", {"messages": [turn], "max_tokens": 2}),
            ("/v1/chat/completions", {"messages": [turn], "max_tokens": 2, "stream": True}),
            ("/v1/chat/completions", {"messages": [turn], "regex": f"{MARKER}("}),
            ("/v1/chat/completions", {"messages": [turn], "regex": MARKER, "max_tokens": 2}),
            ("/v1/chat/completions", {"messages": [turn], "tools": [{"function": tool}]}),
            ("/v1/chat/completions", {"messages": [turn], "stop": MARKER, "max_tokens": 2}),
            ("/v1/chat/completions", {"messages": [turn], "temperature": MARKER}),
            ("/v1/chat/completions", {"messages": [{"role": MARKER}]}),
            ("/v1/chat/completions", {"messages": [{**turn, MARKER: 1}], MARKER: 1}),
            ("/v1/chat/completions", {"messages": [turn] * 999}),
            ("/v1/completions", {"prompt": MARKER, "max_tokens": 2, "echo": True}),
            ("/v1/completions", {"prompt": MARKER * 99999}),
            ("/v1/messages", {"messages": [turn], "max_tokens": 2, "system": MARKER}),
            ("/v1/messages/count_tokens", {"messages": [turn]}),
            ("/v1/responses", {"input": MARKER, "max_output_tokens": 2}),
            ("/v1/responses", {"input": MARKER, "previous_response_id": MARKER}),
            ("/v1/tokenize", {"prompt": MARKER}),
        ]
        seen = set()
        for path, body in bodies:
            answer = server.http.post(path, json={"model": server.model, **body})
            seen.add(answer.status_code)
        assert 200 in seen and 400 in seen and max(seen) < 500, seen
        raw = (f'{{"messages": "{MARKER}'.encode(), MARKER.encode("utf-16"), MARKER.encode())
        for content in raw:
            assert server.http.post("/v1/messages", content=content).status_code == 400
        # Bodies that are longer than they were said to be go on as what looks like a request.
        too_long = b"x" + f"{MARKER} {MARKER}: {MARKER}\r\n\r\n".encode()
        head_too = f"GET / HTTP/1.1\r\n{MARKER} {MARKER}\r\n\r\n".encode()
        chunk = (
            head("POST", "/v1/messages", "Transfer-Encoding: chunked") + f"{MARKER}\r\n".encode()
        )
        for request in (post("/v1/messages", b"x")[:-1] + too_long, head_too, chunk):
            with connect(server) as connection:
                connection.sendall(request)
                while connection.recv(4096):
                    pass
        log = server.logged()
    assert "headrace.access" in log and log.count("no valid HTTP/1.1: illegal") == 3
    assert MARKER not in log
    for kept in (tmp_path / "logs").rglob("*"):
        assert MARKER not in kept.read_text()
