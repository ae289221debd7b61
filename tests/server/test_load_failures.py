"""Models that cannot be served, ports that are taken, options that make no sense.

Each ends the program with one typed sentence that names the file, field or number, no traceback,
and nothing left running.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from tests.server.running import headrace, running, wait_for


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that may be broken."""
    return Path(shutil.copytree(tiny_model, tmp_path / "broken"))


def outcome(*arguments: str, home: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a run, once all of it is gone."""
    process = headrace(*arguments, HEADRACE_HOME=str(home))
    family = psutil.Process(process.pid)
    seen: set[psutil.Process] = set()

    def ended() -> bool:
        try:
            seen.update(family.children(recursive=True))
        except psutil.NoSuchProcess:
            return True
        return process.poll() is not None

    try:
        wait_for(ended, 60, "ended by itself")
    finally:
        process.kill()
        out, err = process.communicate()
    wait_for(lambda: not any(child.is_running() for child in seen), 5, f"gone: {seen}")
    assert "Traceback" not in err, err
    return process.returncode, out, err


def refused(model: Path, home: Path, *options: str) -> str:
    arguments = ("serve", "--model", str(model), "--port", "0", "--threads", "1")
    code, _, err = outcome(
        *arguments, "--device", "cpu", "--log-level", "error", *options, home=home
    )
    assert code == 1, err
    assert not list(home.glob("servers/*"))
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    return errors[0]


def edit_config(model: Path, **fields: Any) -> None:
    path = model / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def truncate(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def wrong_dtype(model: Path) -> None:
    import torch

    weights = model / "model.safetensors"
    with safe_open(weights, "pt") as source:
        tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
    save_file(tensors, weights, {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda m: (m / "model.safetensors").unlink(), ["model.safetensors"]),
        (truncate, ["model.safetensors"]),
        (lambda m: (m / "model.safetensors").write_bytes(b""), ["model.safetensors"]),
        (lambda m: (m / "tokenizer.json").unlink(), ["tokenizer.json", "missing"]),
        (lambda m: (m / "tokenizer.json").write_text("{"), ["tokenizer.json"]),
        (lambda m: (m / "chat_template.jinja").write_text("{% if %}"), ["chat_template.jinja"]),
        (lambda m: (m / "config.json").write_text("{"), ["config.json"]),
        (lambda m: edit_config(m, architectures=["Nope"], model_type="nope"), ["nope"]),
        (lambda m: edit_config(m, num_hidden_layers=None), ["num_hidden_layers"]),
        (wrong_dtype, ["model.norm.weight", "int32"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else ", ".join(value),
)
def test_a_model_that_cannot_be_served(
    model: Path, tmp_path: Path, damage: Callable[[Path], None], named: list[str]
) -> None:
    damage(model)
    error = refused(model, tmp_path)
    assert all(name.lower() in error.lower() for name in named), error


def test_a_model_larger_than_memory(tiny_model: Path, tmp_path: Path) -> None:
    error = refused(tiny_model, tmp_path, "--emulate-ram", "64KiB")
    # Both numbers: what is needed and what there is.
    assert re.search(r"needs [\d.]+ \wi?B .*[\d.]+ \wi?B can be had", error), error


def test_under_an_owner_the_reason_is_at_health(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").unlink()
    me = str(psutil.Process().pid)
    with running(model, tmp_path, "--device", "cpu", "--owner-pid", me, ready=False) as server:
        health = wait_for(lambda: (h := server.health())["status"] == "failed" and h, 30, "failed")
        assert health["error"]["code"] == "model_files"
        assert "tokenizer.json is missing" in health["error"]["message"]
        answer = server.chat()
        assert answer.status_code == 503
        assert "tokenizer.json is missing" in answer.json()["error"]["message"]
        wait_for(lambda: len(server.family()) == 1, 10, "without a runtime")


def test_under_an_owner_the_reason_is_in_the_log(model: Path, tmp_path: Path) -> None:
    """The app's page Logs shows what the server prints."""
    (model / "tokenizer.json").unlink()
    me = str(psutil.Process().pid)
    arguments = ("serve", "--model", str(model), "--port", "0", "--owner-pid", me)
    process = headrace(*arguments, HEADRACE_HOME=str(tmp_path))
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith("Headrace listens on")
    assert "tokenizer.json is missing" in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=20)


def test_an_option_that_the_model_cannot_have_is_told_without_a_traceback(
    tiny_model: Path, tmp_path: Path
) -> None:
    arguments = ("serve", "--model", str(tiny_model), "--device", "cpu", "--context", "999999")
    code, _, err = outcome(*arguments, "--port", "0", home=tmp_path)
    assert code == 1 and "999999" in err.splitlines()[-1] and "Traceback" not in err


def test_no_such_model(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    for verb in ("serve", "chat"):
        code, out, err = outcome(verb, "--model", str(nowhere), home=tmp_path)
        assert code == 1 and str(nowhere) in err and "hint: " in err and out == ""


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET", "0.0.0.0")])
def test_a_port_in_use_is_named(
    tiny_model: Path, tmp_path: Path, family: str, address: str
) -> None:
    with socket.socket(getattr(socket, family)) as other:
        other.bind((address, 0))
        other.listen()
        port = str(other.getsockname()[1])
        arguments = ("serve", "--model", str(tiny_model), "--port", port)
        code, out, err = outcome(*arguments, home=tmp_path)
    assert code == 3 and f"Port {port}" in err and out == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--moe-cache-rate", "0"), "--moe-cache-rate"),
        (("--moe-cache-rate", "-0.5"), "--moe-cache-rate"),
        (("--moe-cache-rate", "1.5"), "--moe-cache-rate"),
        (("--moe-cache-rate", "nan"), "--moe-cache-rate"),
        (("--port", "70000"), "--port"),
        (("--max-sequences", "0"), "--max-sequences"),
        (("--context", "-1"), "--context"),
        (("--device", "tpu"), "--device"),
        (("--step-timeout", "0"), "--step-timeout"),
        (("--emulate-ram", "lots"), "--emulate-ram"),
        (("--made-up",), "--made-up"),
    ],
)
def test_options_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    from engine.cli import main

    with pytest.raises(SystemExit) as raised:
        main(["serve", "--model", "x", *options])
    assert raised.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


SERVE_SCRIPT = """
import sys
from engine.errors import HeadraceError
from engine.options import EngineOptions
from engine.server import main, runtime_link

runtime_link.BACK_OFF_S = (0.0,)
runtime = (sys.executable, sys.argv[2], "dies-idle")
options = EngineOptions(model=sys.argv[1])
try:
    main.serve(main.ServeOptions(engine=options, port=0, runtime_command=runtime))
except HeadraceError as error:
    raise SystemExit(error.message)
"""


def test_a_server_whose_model_is_given_up_later_ends_and_says_so(
    tiny_model: Path, tmp_path: Path
) -> None:
    """It had been ready; nobody owns it; it must not refuse requests for ever in silence."""
    ended = subprocess.run(
        [
            *(sys.executable, "-c", SERVE_SCRIPT, str(tiny_model)),
            str(Path(__file__).with_name("scripted_runtime.py")),
        ],
        env={**os.environ, "HEADRACE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "ended 6 times in a short time: it ended with exit code 7" in ended.stderr
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"logs/runtime-crash.log", "local-key", "api-keys.lock"}
