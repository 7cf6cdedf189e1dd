"""CDI specifications as NVIDIA's tools write them, and as others break them."""

import json
import os
from pathlib import Path

import pytest

from deviceshare.agent.device_reader import MAX_BYTES, CdiSpecs

PLUGINS, HOSTS, OPERATORS = "k8s.device-plugin.nvidia.com/gpu", "nvidia.com/gpu", "management.nvidia.com/gpu"
UUIDS = ("GPU-a", "GPU-b")


class CdiDirectories:
    """Its two directories."""

    def __init__(self, root: Path) -> None:
        self.static, self.dynamic = root / "etc", root / "run"
        self.static.mkdir()
        self.dynamic.mkdir()
        self.specs = CdiSpecs([self.static, self.dynamic])

    def write(self, directory: Path, kind: str, *devices: str, name: str = "") -> Path:
        spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": device} for device in devices]}
        path = directory / (name or f"{kind.replace('/', '-')}.json")
        path.write_text(json.dumps(spec))
        return path


@pytest.fixture
def node(tmp_path: Path) -> CdiDirectories:
    return CdiDirectories(tmp_path)


def test_kinds_that_name_every_device_are_told(node: CdiDirectories) -> None:
    """From both directories, in JSON and in YAML."""
    node.write(node.dynamic, PLUGINS, *UUIDS, "all")
    node.write(node.static, OPERATORS, "all")
    devices = "".join(f"- name: {uuid}\n  containerEdits: {{}}\n" for uuid in UUIDS)
    (node.static / "nvidia.yaml").write_text(f"cdiVersion: 0.5.0\nkind: {HOSTS}\ndevices:\n{devices}")
    assert node.specs.kinds(UUIDS) == [PLUGINS, HOSTS]
    assert node.specs.kinds((*UUIDS, "GPU-c")) == []


def test_a_name_written_twice_in_one_directory_is_unknown(node: CdiDirectories) -> None:
    """Runtimes refuse it; but one in the last directory hides those of the first."""
    node.write(node.static, HOSTS, *UUIDS, name="one.json")
    node.write(node.static, HOSTS, "GPU-b", name="two.json")
    assert node.specs.kinds(UUIDS) == []
    node.write(node.dynamic, HOSTS, "GPU-b")
    assert node.specs.kinds(UUIDS) == [HOSTS]


def test_what_is_written_or_removed_later_counts(node: CdiDirectories) -> None:
    """A device plugin writes its specification when it starts."""
    assert node.specs.kinds(UUIDS) == []
    path = node.write(node.dynamic, PLUGINS, *UUIDS)
    assert node.specs.kinds(UUIDS) == [PLUGINS]
    path.unlink()
    assert node.specs.kinds(UUIDS) == []


@pytest.mark.parametrize("of_device", [True, False])
def test_the_hook_that_limits_memory_is_found_where_it_is_of_nvidias_devices(
    node: CdiDirectories, of_device: bool
) -> None:
    """Edits are of the whole specification or of a device."""
    arguments = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--gpu-id", "GPU-a"]
    hook = {"hookName": "createRuntime", "path": "/usr/bin/nvidia-cdi-hook", "args": arguments}
    edits = {"containerEdits": {"hooks": [{"hookName": "createContainer", "path": "/x"}, hook]}}
    for kind in ("vendor.example/gpu", HOSTS):
        spec = {"kind": kind, "devices": [{"name": "GPU-a"} | (edits if of_device else {})]}
        (node.static / "spec.json").write_text(json.dumps(spec | ({} if of_device else edits)))
        assert node.specs.kinds(["GPU-a"]) == [kind]
        assert node.specs.memory_hook == (kind == HOSTS)
    (node.static / "spec.json").unlink()
    assert node.specs.kinds(["GPU-a"]) == []
    assert not node.specs.memory_hook


def test_nothing_is_read_twice(node: CdiDirectories, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent looks every few seconds."""
    node.write(node.dynamic, PLUGINS, *UUIDS)
    assert node.specs.kinds(UUIDS) == [PLUGINS]
    monkeypatch.setattr("deviceshare.agent.device_reader._devices_of", lambda *_: pytest.fail("read again"))
    assert node.specs.kinds(UUIDS) == [PLUGINS]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"kind": "a/b"}',
        '{"kind": 1, "devices": []}',
        '{"kind": "a/b", "devices": [{}]}',
        '{"kind": "a/b", "devices": null}',
        '{"kind": "a/b", "devices": {"name": "x"}}',
        '{"kind": "a/b", "devices": [{"name": ["x"]}]}',
        "\xff",
        "[" * 100_000,
        " " * (MAX_BYTES + 1),
    ],
    ids=range(13),
)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_broken_file_hides_no_other(node: CdiDirectories, text: str, suffix: str) -> None:
    """Whoever is root on the node may write any."""
    (node.static / f"broken.{suffix}").write_bytes(text.encode("latin-1"))
    node.write(node.dynamic, PLUGINS, *UUIDS)
    assert node.specs.kinds(UUIDS) == [PLUGINS]


def test_what_is_no_file_is_left_alone(node: CdiDirectories) -> None:
    """To open a pipe would wait for whoever writes into it."""
    os.mkfifo(node.static / "pipe.json")
    (node.static / "directory.json").mkdir()
    (node.static / "dangling.json").symlink_to(node.static / "nowhere")
    node.write(node.dynamic, PLUGINS, *UUIDS)
    assert node.specs.kinds(UUIDS) == [PLUGINS]


def test_without_directories_nothing_is_known(tmp_path: Path) -> None:
    """Which is something else than that there is no specification."""
    assert CdiSpecs([]).kinds(UUIDS) is None
    assert CdiSpecs([tmp_path / "missing"]).kinds(UUIDS) is None


def test_the_agents_own_variable_tells_how_devices_are_injected(node: CdiDirectories) -> None:
    """A runtime by CDI leaves `void` there; without any specification of NVIDIA's it made up its own."""
    assert node.specs.injected(None) == ""
    assert node.specs.injected("all") == "variable"
    assert node.specs.injected("void") == "variable"
    node.write(node.dynamic, OPERATORS, "all")
    assert node.specs.injected("void") == "cdi"
    assert node.specs.injected(f"{OPERATORS}=all") == "cdi"
    assert node.specs.injected("all") == "variable"
    assert CdiSpecs([]).injected("void") == "cdi"
