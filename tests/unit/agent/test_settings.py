"""`deviceshare agent`: what it is told, by flags or by its pod's environment."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deviceshare import logs
from deviceshare.agent import process
from deviceshare.agent.settings import AgentSettings
from deviceshare.cli.agent import agent


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[AgentSettings]:
    """What the agents were told that would have run."""
    settings: list[AgentSettings] = []

    def run(chosen: AgentSettings) -> int:
        settings.append(chosen)
        return 0

    monkeypatch.setattr(process, "main", run)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    return settings


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(
        agent, arguments, env={f"DEVICESHARE_{name}": value for name, value in environment.items()}
    )


def test_a_name_is_enough(told: list[AgentSettings]) -> None:
    """The chart gives it as an environment variable."""
    assert invoke(NODE_NAME="n1").exit_code == 0

    [chosen] = told
    assert (chosen.node_name, chosen.bind, chosen.enforce) == ("n1", ("0.0.0.0", 9410), "report")
    assert (chosen.proc_root, chosen.sys_root, chosen.pod_resources) == (Path("/proc"), Path("/sys"), "")


def test_without_a_name_it_does_not_start(told: list[AgentSettings]) -> None:
    """It would report on a node that isn't its own."""
    done = invoke()

    assert (done.exit_code, told) == (2, [])
    assert "--node-name" in done.output


@pytest.mark.parametrize(
    "flag", ["--enforce=kill", "--overuse-grace=5", "--overuse-tolerance=-1", "--proc-root=/nowhere", "--bind=here"]
)
def test_a_wrong_flag_is_named(told: list[AgentSettings], flag: str) -> None:
    """Before anything is started."""
    done = invoke("--node-name=n1", flag)

    assert (done.exit_code, told) == (2, [])
    assert flag.partition("=")[0] in done.output


@pytest.mark.parametrize(
    ("enforce", "causes"), [("report", ()), ("evict", ("trespass", "overuse")), ("evict-trespassers", ("trespass",))]
)
def test_who_is_evicted_is_one_setting(told: list[AgentSettings], enforce: str, causes: tuple[str, ...]) -> None:
    """By default nobody; the tolerance and the grace period have defaults."""
    assert invoke(f"--enforce={enforce}", NODE_NAME="n1").exit_code == 0

    [chosen] = told
    assert chosen.enforced == causes
    assert (chosen.overuse_tolerance, chosen.overuse_grace) == (10, 60)


def test_placeholders_without_the_kubelets_word_are_refused(told: list[AgentSettings]) -> None:
    """Nobody would know what they have, and groups would get nothing for ever."""
    refused = invoke("--placeholders=system", NODE_NAME="n1")

    assert (refused.exit_code, told) == (2, [])
    assert "--placeholders needs --pod-resources SOCKET" in refused.output
    assert invoke("--placeholders=system", "--pod-resources=/kubelet.sock", NODE_NAME="n1").exit_code == 0
