"""The NVIDIA probe: beside no driver, and beside a library file that plays one."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.governor.evidence import Engine
from app.core.governor.probes.gpu_power import all_asleep
from app.core.governor.probes.nvml import NvmlProbe
from app.core.governor.probes.probe import NotAvailable
from tests.project.checkout import ROOT

ENGINE = Engine(identity="one", pid=42, held_bytes=60)
SCRIPT = """
import os, sys
from pathlib import Path
from app.core.governor.evidence import Engine
from app.core.governor.probes.nvml import NvmlProbe
from app.core.governor.probes.probe import NotAvailable
asleep = []
probe = NvmlProbe(lambda: bool(asleep))
engine = Engine(identity="one", pid=int(sys.argv[1]), held_bytes=60)
def read():
    try:
        print(probe.read(engine))
    except NotAvailable as why:
        print(why)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml.c")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o"]
    subprocess.run([*command, folder / "libnvidia-ml.so.1", source], check=True)
    return folder


def run(library: Path, steps: str, pid: int = 42, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + steps, str(pid)],
        env={"LD_LIBRARY_PATH": str(library), "PATH": "/usr/bin:/bin", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return done.stdout.splitlines()


def test_a_machine_without_a_driver_is_told_so() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        with pytest.raises(NotAvailable, match="No NVIDIA driver is installed"):
            NvmlProbe(lambda: False).read(ENGINE)
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a driver")


def test_the_engine_s_gpu_is_read(library: Path) -> None:
    (line,) = run(library, "read()")
    assert "total_bytes=1000, used_bytes=100" in line and "users={42: 60, 7: 30}" in line


def test_among_several_gpus_the_engine_s_must_be_known(library: Path) -> None:
    (line,) = run(library, "read()", pid=99)
    assert line.startswith("The PC has 2 GPUs")


def test_a_list_that_lacks_the_engine_means_nothing(library: Path) -> None:
    (line,) = run(library, "read()", pid=99, NVML_GPUS="1")
    assert "used_bytes=100" in line and "users=None" in line
    assert run(library, "read()", NVML_GPUS="0") == ["The NVIDIA driver finds no GPU."]


def test_a_lost_gpu_is_asked_anew(library: Path, tmp_path: Path) -> None:
    lost, log = tmp_path / "lost", tmp_path / "log"
    steps = "read(); Path(os.environ['NVML_LOST']).touch(); read()\n"
    steps += "Path(os.environ['NVML_LOST']).unlink(); read()"
    first, second, third = run(library, steps, NVML_LOST=str(lost), NVML_LOG=str(log))
    assert second == "The driver has lost the GPU." and first == third
    assert log.read_text().split() == ["init", "shutdown", "init"]


def test_a_sleeping_gpu_is_left_alone(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    steps = "asleep.append(1); read(); asleep.clear(); read(); probe.rest(); probe.rest()\n"
    steps += "asleep.append(1); read()"
    first, second, third = run(library, steps, NVML_LOG=str(log))
    assert first == third == "The GPU sleeps, and asking would wake it."
    assert "used_bytes" in second
    assert log.read_text().split() == ["init", "shutdown"]


def device(root: Path, name: str, vendor: str, kind: str, status: str) -> None:
    folder = root / name
    (folder / "power").mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
    (folder / "power" / "runtime_status").write_text(f"{status}\n")


def test_power_as_the_kernel_tells_it(tmp_path: Path) -> None:
    assert not all_asleep(tmp_path) and not all_asleep(tmp_path / "none")
    device(tmp_path, "0000:00:02.0", "0x8086", "0x030000", "active")
    device(tmp_path, "0000:01:00.1", "0x10de", "0x040300", "active")  # the card's sound
    device(tmp_path, "0000:01:00.0", "0x10de", "0x030000", "suspended")
    assert all_asleep(tmp_path)
    device(tmp_path, "0000:02:00.0", "0x10de", "0x030200", "active")
    assert not all_asleep(tmp_path)
