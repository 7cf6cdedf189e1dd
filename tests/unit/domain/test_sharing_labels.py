"""Nodes that another system's labels share."""

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.nodes import Node, SharingLabels, is_label, may_be_shared
from deviceshare.domain.objects.object_decoder import ObjectMeta

LABELS = SharingLabels.written("gpushare=true,ack.node.gpu.schedule=share,ack.node.gpu.schedule=mps")


def a_node(**labels: str) -> Node:
    return Node(ObjectMeta(name="n", labels={key.replace("_", "."): value for key, value in labels.items()}))


@pytest.mark.parametrize(
    ("labels", "shared"),
    [
        ({"gpushare": "true"}, True),
        ({"ack_node_gpu_schedule": "mps"}, True),
        ({"ack_node_gpu_schedule": "cgpu"}, False),
        ({"gpushare": "false"}, False),
        ({}, False),
    ],
)
def test_one_of_the_labels_with_its_value_shares_a_node(labels: dict[str, str], shared: bool) -> None:
    """A key may be named with several values; nothing else of the node is changed."""
    node = a_node(**labels)

    assert LABELS(node).shared == may_be_shared(LABELS(node)) == shared
    assert not SharingLabels()(node).shared
    assert (LABELS(node) is node) is not shared
    assert node.metadata.labels.items() <= LABELS(node).metadata.labels.items()


def test_our_own_label_wins() -> None:
    """By another value of it an owner keeps a node out that the other system still manages."""
    labels = {"gpushare": "true", contract.MODE_LABEL: "exclusive"}

    assert not LABELS(Node(ObjectMeta(name="n", labels=labels))).shared
    assert LABELS(Node(ObjectMeta(name="n", labels=labels | {contract.MODE_LABEL: "shared"}))).shared


def test_a_node_whose_labels_can_not_be_read_is_kept() -> None:
    """What it has may be in use; who decides by it asks whether it can be read."""
    hidden = Node(ObjectMeta(name="n", unreadable={"metadata.labels[a]": "Expected `str`, got `int`"}))

    assert may_be_shared(LABELS(hidden))
    assert not LABELS(hidden).shared


@pytest.mark.parametrize("text", ["gpushare=true", "example.com/a_b.c=", "cgpu=true"])
def test_a_label_is_a_key_and_a_value(text: str) -> None:
    """As Kubernetes has them."""
    assert is_label(text)


@pytest.mark.parametrize("text", ["gpushare", "=true", "a=b=c", "-a=b", f"{'a' * 64}=b", "deviceshare.io/mode=shared"])
def test_what_is_no_label_of_others_is_refused(text: str) -> None:
    """Our own has its meaning anyway."""
    assert not is_label(text)
