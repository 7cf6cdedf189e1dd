"""What a person reads whose request was refused: the right, the role with it, and the administrator's command."""

import pytest

from deviceshare.cli.cluster import explained
from deviceshare.loops.ports import Forbidden

WHERE = {"": "at the cluster scope", "lab": 'in the namespace "lab"'}


def refused(verb: str, resource: str, group: str = "", namespace: str = "", user: str = "alice") -> str:
    """What is said of the API server's refusal."""
    said = f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "{group}" '
    return explained(Forbidden("GET /x: 403", said=said + WHERE[namespace]))


OURS = "deviceshare.io"


@pytest.mark.parametrize(
    ("text", "what", "command"),
    [
        (
            refused("list", "shareddevicegroups", OURS),
            "alice may not list shareddevicegroups.deviceshare.io in the whole cluster",
            "kubectl create clusterrolebinding deviceshare-view-alice --clusterrole=deviceshare-view --user=alice",
        ),
        (
            refused("patch", "shareddevicegroups", OURS, user="a b@c"),
            "a b@c may not patch",
            "clusterrolebinding deviceshare-edit-a-b-c --clusterrole=deviceshare-edit --user='a b@c'",
        ),
        (
            refused("patch", "nodedevices/status", OURS),
            "ClusterRole deviceshare-recover grants it",
            "--clusterrole=deviceshare-recover --user=alice",
        ),
        (
            refused("list", "pods", namespace="lab", user="system:serviceaccount:ci:bot"),
            "may not list pods in namespace lab",
            "rolebinding view-system-serviceaccount-ci-bot --namespace=lab --clusterrole=view --serviceaccount=ci:bot",
        ),
        (
            refused("get", "pods/proxy", namespace="lab"),
            "ClusterRole deviceshare-top grants it",
            "rolebinding deviceshare-top-alice --namespace=lab --clusterrole=deviceshare-top --user=alice",
        ),
    ],
)
def test_the_role_and_the_command_that_binds_it_are_named(text: str, what: str, command: str) -> None:
    """Ready to be sent to an administrator."""
    assert what in text and command in text


def test_a_right_that_no_role_for_people_grants_has_no_command() -> None:
    """Nobody is told to bind cluster-admin."""
    for text in (refused("patch", "nodedevices", OURS), refused("list", "nodes"), refused("list", "pods")):
        assert "kubectl create" not in text and "kubectl auth can-i --list" in text


def test_wrong_credentials_are_not_a_missing_right() -> None:
    """The API server refuses both."""
    assert "log in to it again" in explained(Forbidden("GET /x: 401", said="Unauthorized"))
