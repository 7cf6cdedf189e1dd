"""How a command reaches the cluster, and what it says when it can't: always with the next command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from deviceshare.cli.main import main
from tests.unit.cli.servers import served
from tests.unit.kube.scripted import kubeconfig, status


@pytest.fixture(autouse=True)
def _nobodys_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that don't answer anyway."""
    monkeypatch.setattr("deviceshare.cli.cluster.HELLO_SECONDS", 0.5)


def inspect(*arguments: str) -> Result:
    """`deviceshare inspect ARGUMENTS`."""
    return CliRunner().invoke(main, ["inspect", *arguments])


def test_without_a_kubeconfig_it_says_where_one_was_looked_for(tmp_path: Path) -> None:
    """The usual place, and how to name another."""
    result = inspect()
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: There is no kubeconfig {tmp_path}/home/.kube/config: name one with --kube")


@pytest.mark.usefixtures("_impatient")
def test_one_of_several_files_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBECONFIG may be a list, as kubectl has it."""
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["/none", kubeconfig(tmp_path, "http://127.0.0.1:1")]))
    assert "127.0.0.1:1" in inspect().output


def test_an_unknown_context_is_named(tmp_path: Path) -> None:
    """With the file in which it was looked for."""
    result = inspect("--kubeconfig", kubeconfig(tmp_path, "http://127.0.0.1:1"), "--context", "typo")
    assert result.exit_code == 1
    assert "typo" in result.output
    assert str(tmp_path) in result.output


@pytest.mark.usefixtures("_impatient")
def test_a_cluster_that_does_not_answer_is_called_unreachable(tmp_path: Path) -> None:
    """Within seconds, and with a way to look closer."""
    result = inspect("--kubeconfig", kubeconfig(tmp_path, "http://127.0.0.1:1"))
    assert result.exit_code == 1
    assert "Error: Can't reach the cluster: GET /version: " in result.output
    assert "kubectl get --raw /readyz" in result.output


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [(403, "Forbidden", "This user may not do that: "), (404, "", "deviceshare is not installed in this cluster: ")],
)
def test_a_refusal_says_what_it_means(tmp_path: Path, code: int, reason: str, said: str) -> None:
    """Lacking rights, lacking CRDs."""

    async def refuse(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        return web.json_response(status(code, reason), status=code)

    with served(refuse, tmp_path) as file:
        result = inspect("--kubeconfig", file)
    assert result.exit_code == 1
    assert said in result.output


def test_a_watch_is_no_machine_format() -> None:
    """Rather than that a script waits for an end that never comes."""
    result = inspect("--watch", "-o", "json")
    assert result.exit_code == 2
    assert "leave out -o json" in result.output


@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_help_loads_neither_the_api_client_nor_what_decides(command: str) -> None:
    """Whoever asks for it waits for that."""
    program = (
        f"import sys; from deviceshare.cli.main import main; main(['{command}', '--help'], standalone_mode=False);"
        " print({'aiohttp', 'structlog', 'deviceshare.domain.placement.fleet'} & sys.modules.keys() or 'none')"
    )
    modules = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=modules, check=True)
    assert done.stdout.splitlines()[-1] == "none"


def test_no_help_has_a_backspace() -> None:
    """click's mark of text that isn't wrapped is one only at the beginning of a paragraph."""

    def helps(command: click.Command, name: str, above: click.Context | None = None) -> Iterator[tuple[str, str]]:
        context = click.Context(command, info_name=name, parent=above)
        yield name, command.get_help(context)
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                found = command.get_command(context, each)
                assert found is not None
                yield from helps(found, f"{name} {each}", context)

    told = dict(helps(main, "deviceshare"))
    assert "deviceshare explain pod" in told
    assert [name for name, text in told.items() if "\b" in text] == []
