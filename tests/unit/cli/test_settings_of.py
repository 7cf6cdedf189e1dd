"""Commands believe the pods that deviceshare believes: webhooks' configuration or policy say what is left out."""

from typing import Any

import pytest

from deviceshare.cli.snapshot import mirrored, settings_of
from deviceshare.doctor.kinds import AccessReview
from deviceshare.domain.admission.pod_guard import USUAL
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.kube.api import Collection
from deviceshare.kube.connection import Unserved
from deviceshare.loops.kinds import NODES, VALIDATING, AdmissionPolicy, AdmissionPolicySpec, WebhookConfiguration
from deviceshare.loops.ports import ApiError, Forbidden, Kind, NotFound, Unavailable


class OnlyPolicies:
    """An API with the policies and without webhooks."""

    async def get(self, kind: Kind[Any], *_: Any) -> AdmissionPolicy:
        if kind is not VALIDATING.policies:
            raise NotFound("no webhooks")
        expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["gpu"]}
        constraints = {"namespaceSelector": {"matchExpressions": [expression]}}
        meta = ObjectMeta(annotations={"deviceshare.io/shared-node-labels": "cgpu=true,gpushare=true"})
        return AdmissionPolicy(meta, AdmissionPolicySpec(match_constraints=constraints))


class OneAnswer:
    """An API that always answers the same."""

    def __init__(self, answer: WebhookConfiguration | ApiError) -> None:
        self.answer = answer

    async def get(self, *_: Any) -> WebhookConfiguration:
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer


async def test_commands_go_by_the_webhooks_configuration() -> None:
    """Whatever the chart's values were."""
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["gpu", "monitoring"]}
    webhook = {"name": "validate-pods.deviceshare.io", "namespaceSelector": {"matchExpressions": [expression]}}
    api: Any = OneAnswer(WebhookConfiguration(webhooks=[{"name": "other"}, webhook]))
    assert (await settings_of(api))[0].left_out == {"gpu", "monitoring"}


async def test_commands_go_by_the_policy_where_there_are_no_webhooks() -> None:
    """It says the same."""
    api: Any = OnlyPolicies()
    assert (await settings_of(api))[0].left_out == {"gpu"}


async def test_an_old_server_has_neither() -> None:
    """It doesn't even know the kind."""

    class Old:
        async def get(self, kind: Kind[Any], *_: Any) -> None:
            raise Unserved("404") if kind is VALIDATING.policies else NotFound("none")

    api: Any = Old()
    assert (await settings_of(api))[0].left_out == USUAL


class Listing(OneAnswer):
    """Besides, two nodes, of which one has another system's label, and nothing else; all of it may be read."""

    async def create(self, *_: Any) -> AccessReview:
        return AccessReview({"allowed": True})

    async def snapshot(self, of: Collection[Any], *_: Any, **__: Any) -> tuple[list[Any], str]:
        labels = {"a": {"gpushare": "true"}, "b": {"gpushare": "false"}} if of.kind is NODES else {}
        return [Node(ObjectMeta(name=name, labels=each, resource_version="1")) for name, each in labels.items()], "1"


@pytest.mark.parametrize(("setting", "shared"), [("cgpu=true,gpushare=true", ["a"]), ("cgpu=true", [])])
async def test_commands_see_the_nodes_that_deviceshare_sees(setting: str, shared: list[str]) -> None:
    """By other systems' labels, too."""
    meta = ObjectMeta(annotations={"deviceshare.io/shared-node-labels": setting})
    api: Any = Listing(WebhookConfiguration(meta))
    assert [node.metadata.name for node in (await mirrored(api, "default")).nodes.values()] == shared


@pytest.mark.parametrize("error", [Forbidden("no"), NotFound("no")])
async def test_who_may_not_read_it_goes_by_the_usual(error: ApiError) -> None:
    """People with few rights may still inspect."""
    api: Any = OneAnswer(error)
    assert (await settings_of(api))[0].left_out == USUAL


async def test_a_server_that_does_not_answer_is_said_to() -> None:
    """Nothing is guessed then."""
    api: Any = OneAnswer(Unavailable("away"))
    with pytest.raises(Unavailable):
        await settings_of(api)
