"""What `deviceshare run` refuses, and what it understands."""

from pathlib import Path

import click
import pytest

from deviceshare.cli.run import run
from deviceshare.domain.admission.pod_guard import USUAL
from deviceshare.flags import Tls
from deviceshare.loops.leadership import Timing
from deviceshare.run.settings import Settings

WITHOUT_WEBHOOK = ("--roles", "controller,extender")


def parse(*flags: str) -> Settings:
    """As the command does it; raises click.UsageError."""
    with run.make_context("run", list(flags)) as context:
        return Settings(**context.params)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.pem"
    path.touch()
    return path


@pytest.mark.parametrize("given", [(), ("--tls-cert",), ("--tls-key",)], ids=["none", "certificate", "key"])
def test_webhooks_without_a_certificate_are_refused(given: tuple[str, ...], file: Path) -> None:
    """With all three ways out."""
    flags = [part for flag in given for part in (flag, str(file))]
    with pytest.raises(click.UsageError, match=r"--ca-secret NAME.*--tls-cert FILE.*--roles controller,extender"):
        parse(*flags)


def test_one_way_to_a_certificate_excludes_the_other(file: Path) -> None:
    """Else nobody knows which one is served."""
    with pytest.raises(click.UsageError, match="exclude each other"):
        parse("--ca-secret", "ca", "--tls-cert", str(file), "--tls-key", str(file))


def test_a_process_without_webhooks_needs_no_certificate() -> None:
    """The extender on loopback speaks plain HTTP."""
    settings = parse(*WITHOUT_WEBHOOK)

    assert settings.extender_tls is None


def test_where_policies_admit_pods_no_certificate_is_needed() -> None:
    """The roles may stay as they are: there is no webhook to serve."""
    settings = parse("--admission", "policies")

    assert "webhook" in settings.roles
    assert not settings.serves_webhooks
    assert parse("--ca-secret", "ca").serves_webhooks
    assert not parse(*WITHOUT_WEBHOOK).serves_webhooks
    with pytest.raises(click.UsageError, match="leaves nothing to do: name other roles"):
        parse("--admission", "policies", "--roles", "webhook")


def test_the_namespaces_left_out_are_those_named_and_our_own() -> None:
    """The manifests' unless others are named; none but our own is a choice too."""
    assert parse(*WITHOUT_WEBHOOK).left_out == USUAL
    assert parse(*WITHOUT_WEBHOOK, "--excluded-namespaces", "a, b", "--namespace", "gpu").left_out == {"a", "b", "gpu"}
    assert parse(*WITHOUT_WEBHOOK, "--excluded-namespaces=").left_out == {"deviceshare-system"}
    with pytest.raises(click.UsageError, match="'Kube_System': not a namespace's name, such as kube-system"):
        parse(*WITHOUT_WEBHOOK, "--excluded-namespaces", "Kube_System")


def test_the_webhooks_files_are_taken(file: Path) -> None:
    """As cert-manager mounts them."""
    assert parse("--tls-cert", str(file), "--tls-key", str(file)).webhook_tls == Tls(file, file)
    assert parse("--ca-secret", "ca").webhook_tls is None


@pytest.mark.parametrize("address", ["0.0.0.0:1", ":1", "10.0.0.1:1", "[::]:1", "extender.example:1"])
def test_an_extender_beyond_loopback_demands_client_certificates(address: str, file: Path) -> None:
    """Who can call it can bind pods."""
    with pytest.raises(click.UsageError, match=r"--extender-client-ca, or bind it to 127\.0\.0\.1"):
        parse(*WITHOUT_WEBHOOK, "--extender-bind", address)

    files = [part for name in ("tls-cert", "tls-key", "client-ca") for part in (f"--extender-{name}", str(file))]
    assert parse(*WITHOUT_WEBHOOK, "--extender-bind", address, *files).extender_tls == Tls(file, file, file)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1"])
def test_an_extender_on_loopback_needs_no_certificate(address: str) -> None:
    """Only its own pod reaches it."""
    assert parse(*WITHOUT_WEBHOOK, "--extender-bind", address).extender_tls is None


def test_an_extender_with_half_of_its_files_is_refused(file: Path) -> None:
    """TLS that lets anybody in would look safe."""
    with pytest.raises(click.UsageError, match="go together"):
        parse(*WITHOUT_WEBHOOK, "--extender-tls-cert", str(file), "--extender-tls-key", str(file))


def test_a_role_that_is_off_is_not_checked() -> None:
    """Its flags may stay in a shared environment."""
    assert parse("--roles", "controller", "--extender-bind", ":1").roles == {"controller"}


def test_the_certificate_is_for_the_service_and_the_address() -> None:
    """The API server asks for NAME.NAMESPACE.svc, or for what a `url` says."""
    settings = parse(
        "--ca-secret", "ca", "--webhook-service", "hooks", "--namespace", "gpu", "--webhook-bind", "[::1]:1"
    )

    assert settings.webhook_names == ("hooks.gpu.svc", "hooks.gpu", "hooks.gpu.svc.cluster.local")
    assert settings.webhook_addresses == ("::1",)
    assert parse("--ca-secret", "ca").webhook_addresses == ()


def test_the_election_has_the_times_of_kubernetes_own() -> None:
    """Unless others are chosen."""
    assert parse(*WITHOUT_WEBHOOK).lease == Timing(15, 10, 2)
    chosen = ("--lease-duration", "3", "--renew-deadline", "2", "--retry-period", "0.5")
    assert parse(*WITHOUT_WEBHOOK, *chosen).lease == Timing(3, 2, 0.5)


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, -1, -2)])
def test_times_of_the_election_that_cannot_work_are_refused(times: tuple[int, int, int]) -> None:
    """Two would lead at once, or a leader would stop at the first hiccup."""
    flags = zip(("--lease-duration", "--renew-deadline", "--retry-period"), map(str, times), strict=True)
    with pytest.raises(click.UsageError, match="such as 15, 10 and 2 seconds"):
        parse(*WITHOUT_WEBHOOK, *(part for flag in flags for part in flag))


def test_the_page_is_on_loopback_unless_told_otherwise() -> None:
    """`kubectl port-forward` reaches it there, and nobody else does."""
    bound = parse(*WITHOUT_WEBHOOK).ui_bind
    assert bound is not None and (bound.host, bound.port) == ("127.0.0.1", 8088)
    assert parse(*WITHOUT_WEBHOOK, "--ui-bind", ":1").ui_bind == ("0.0.0.0", 1)


@pytest.mark.parametrize("off", ["", "off"])
def test_the_page_can_be_turned_off(off: str) -> None:
    """An empty variable counts as none, so there is a word for it."""
    assert parse(*WITHOUT_WEBHOOK, "--ui-bind", off).ui_bind is None


def test_a_kind_that_is_none_is_refused() -> None:
    """No runtime would understand a name that it qualifies."""
    setting = parse(*WITHOUT_WEBHOOK, "--handover", "cdi", "--cdi-kind", "nvidia.com/gpu").handover_setting
    assert (setting.style, setting.kind) == ("cdi", "nvidia.com/gpu")
    with pytest.raises(click.UsageError, match=r"such as k8s\.device-plugin\.nvidia\.com/gpu"):
        parse(*WITHOUT_WEBHOOK, "--cdi-kind", "gpu")


def test_an_agents_url_is_checked() -> None:
    """Containers get it as it is."""
    assert parse(*WITHOUT_WEBHOOK).agent_url == ""
    assert parse(*WITHOUT_WEBHOOK, "--agent-url", "http://{host}:9412").agent_url == "http://{host}:9412"
    with pytest.raises(click.UsageError, match="--agent-url 9412: it is not a URL such as"):
        parse(*WITHOUT_WEBHOOK, "--agent-url", "9412")


def test_what_becomes_of_idle_and_deleted_groups_is_checked() -> None:
    """Unless told otherwise they keep their devices, and aren't deleted under their pods."""
    assert parse(*WITHOUT_WEBHOOK).life == ("never", "AfterLastPod")
    given = ("--release-after", "1h30m", "--deletion-policy", "AfterLastPod")
    assert parse(*WITHOUT_WEBHOOK, *given).life == ("1h30m", "AfterLastPod")
    for wrong in ("0s", "soon", ""):
        with pytest.raises(
            click.UsageError, match=r"--release-after: '.*' is neither a duration of at least 1s.*nor never"
        ):
            parse(*WITHOUT_WEBHOOK, "--release-after", wrong)
    with pytest.raises(click.UsageError, match="AfterLastPod"):
        parse(*WITHOUT_WEBHOOK, "--deletion-policy", "Orphan")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gpu", "is not a list of matchExpressions"),
        ('{"key": "gpu"}', "is not a list of matchExpressions"),
        ('[{"key": "gpu", "operator": "In"}]', "matchExpressions: In needs values"),
    ],
)
def test_a_namespace_selector_that_selects_nothing_sensible_is_refused(text: str, why: str) -> None:
    """The API server would refuse it in a webhook, too."""
    with pytest.raises(click.UsageError, match=why):
        parse(*WITHOUT_WEBHOOK, "--namespace-selector", text)
