"""Commands believe the pods that deviceshare believes: what is left out stands in the webhooks' configuration."""

from typing import Any

import pytest

from deviceshare.cli.snapshot import guard_of
from deviceshare.domain.admission.pod_guard import USUAL
from deviceshare.loops.kinds import WebhookConfiguration
from deviceshare.loops.ports import ApiError, Forbidden, NotFound, Unavailable


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
    webhook = {
        "name": "validate-pods.deviceshare.io",
        "namespaceSelector": {"matchExpressions": [expression]},
    }
    api: Any = OneAnswer(WebhookConfiguration(webhooks=[{"name": "other"}, webhook]))
    assert (await guard_of(api)).left_out == {"gpu", "monitoring"}


@pytest.mark.parametrize("error", [Forbidden("no"), NotFound("no")])
async def test_who_may_not_read_it_goes_by_the_usual(error: ApiError) -> None:
    """People with few rights may still inspect."""
    api: Any = OneAnswer(error)
    assert (await guard_of(api)).left_out == USUAL


async def test_a_server_that_does_not_answer_is_said_to() -> None:
    """Nothing is guessed then."""
    api: Any = OneAnswer(Unavailable("away"))
    with pytest.raises(Unavailable):
        await guard_of(api)
