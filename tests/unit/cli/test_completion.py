"""Shell completion and suggestions: names that the cluster knows, in time or not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner

from deviceshare.cli.main import candidates, main
from deviceshare.cli.parameters import did_you_mean
from deviceshare.kube.kubeconfig import load
from tests.unit.cli.servers import served
from tests.unit.kube.scripted import status

NAMES = {
    "/apis/deviceshare.io/v1alpha1/shareddevicegroups": ["team-a", "team-b", "other"],
    "/apis/deviceshare.io/v1alpha1/nodedevices": ["node-1"],
    "/api/v1/namespaces/lab/pods": ["train", "test"],
    "/api/v1/namespaces/team/pods": ["web"],
    "/api/v1/namespaces": ["lab", "team"],
}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The file of a cluster with these names, whose context has the namespace lab."""
    monkeypatch.setattr("deviceshare.cli.parameters.SECONDS", 30.0)  # A busy machine is no reason to offer nothing.

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        if request.path not in NAMES:
            return web.json_response(status(403, "Forbidden"), status=403)
        items = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in NAMES[request.path]]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    with served(answer, tmp_path) as file:
        document = yaml.safe_load(Path(file).read_text())
        document["contexts"][0]["context"]["namespace"] = "lab"
        Path(file).write_text(yaml.safe_dump(document))
        monkeypatch.setenv("KUBECONFIG", file)
        yield


def offered(*words: str) -> list[str]:
    """The candidates for the last of the words, without descriptions."""
    return [fields[0] for fields in candidates(main, words)]


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["explain", "group", "team"], ["team-a", "team-b"]),
        (["explain", "pod", "t"], ["test", "train"]),
        (["explain", "pod", "-n", "team", ""], ["web"]),
        (["explain", "pod", "team/"], ["team/web"]),
        (["explain", "pod", "secret/"], []),
        (["inspect", ""], ["node-1"]),
        (["inspect", "-n", "l"], ["lab"]),
        (["rebind", "po"], ["pod"]),
        (["rebind", "pod", "tr"], ["train"]),
        (["rebind", "o"], ["other"]),
        (["recover", ""], ["node-1"]),
    ],
)
def test_names_that_the_cluster_knows_are_offered(words: list[str], names: list[str]) -> None:
    """Groups, nodes, namespaces, pods of the context's namespace; where they may not be listed, none."""
    assert offered(*words) == [*names, ":4"]


def test_where_no_cluster_answers_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error neither: the shell would print it into the line."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert offered("explain", "group", "") == [":4"]
    assert capsys.readouterr() == ("", "")


def test_files_are_the_shells_business() -> None:
    """By cobra's directive for kubectl; commands come with what they do."""
    assert offered("plan", "-f", "") == [":0"]
    assert ("explain", "Explain why a pod or a group waits, or is where it is.") in candidates(main, ["ex"])


def test_a_mistyped_command_or_name_is_answered_with_the_nearest() -> None:
    """Whatever its case."""
    assert "Did you mean 'inspect'?" in CliRunner().invoke(main, ["inspct"]).output
    assert did_you_mean("Trainng", ["training", "other"]) == ". Did you mean training?"
    assert did_you_mean("zzz", ["training"]) == ""


def test_the_contexts_namespace_is_found_as_kubectl_finds_it(tmp_path: Path) -> None:
    """The first file with a current context decides which; a file that can't be read says nothing."""
    one, two, odd = (tmp_path / name for name in ("one", "two", "odd"))
    one.write_text("contexts: [{name: a, context: {namespace: lab}}, {name: b, context: {}}]")
    two.write_text("current-context: a\ncontexts: [{name: a, context: {namespace: late}}]")
    odd.write_text("{")
    files = f"{odd}:{one}:{two}"
    config = load(files)
    assert [config.namespace(each) for each in (None, "a", "b", "c")] == ["lab", "lab", "default", "default"]
