"""NVML without GPUs, loaded by pynvml as it loads NVIDIA's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceshare.nvidia import Driver
from deviceshare_sandbox.nvml import Script, build, load


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def script(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """A machine without GPUs yet; what the test changes, the next call of NVML sees."""
    load(library)
    script = Script(tmp_path / "nvml")
    for name, value in script.environment(library).items():
        monkeypatch.setenv(name, value)
    return script


@pytest.fixture
def driver(script: Script) -> Iterator[Driver]:
    """NVML, started."""
    with Driver() as started:
        yield started
