"""The same pods through the domain, the webhooks over HTTP, and the policies."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from deviceshare.domain.admission.settings import GATES, UNCHANGED, InjectionSettings
from deviceshare.domain.objects.share_wishes import REQUIRED
from tests.unit.policies.evaluation import a_request, policies
from tests.unit.policies.examples import ADMITTED, LONG_NAME, REFUSED, REFUSED_FIRST, a_pod, asking
from tests.unit.policies.sameness import SHORTER, chart_values, injected_the_same, without_warnings
from tests.unit.policies.stored_form import stored_form
from tests.unit.web.webhooks import Webhooks, patched

Json = dict[str, Any]
ALL = {**ADMITTED, **REFUSED, **REFUSED_FIRST}
SETTINGS = {
    "defaults": InjectionSettings(),
    "everything set": InjectionSettings(
        "nvidia", frozenset({"gpushare"}), False, frozenset({"volcano"}), UNCHANGED, "http://[{host}]:9412"
    ),
    "limits by the hook": InjectionSettings(isolation=REQUIRED, memory_limits="hook"),
    "limits by interception": InjectionSettings(memory_limits="intercept"),
    "behind gates": InjectionSettings(placement=GATES),
    "agents behind a Service": InjectionSettings("", frozenset(), True, frozenset(), agent_url="http://agent.svc:9412"),
}


@pytest.fixture(params=SETTINGS)
async def webhooks(request: pytest.FixtureRequest) -> AsyncIterator[Webhooks]:
    """With each of the settings."""
    async with Webhooks(injection=SETTINGS[request.param]) as served:
        yield served


@pytest.mark.parametrize("name", ALL)
async def test_domain_webhooks_and_policies_agree(
    name: str, webhooks: Webhooks, request: pytest.FixtureRequest
) -> None:
    """On the pod that is stored, and on each refusal, word by word."""
    settings = SETTINGS[request.node.callspec.params["webhooks"]]
    said = injected_the_same(ALL[name], settings)

    pod = stored_form(ALL[name])
    result, refusal = await by_webhooks(webhooks, pod)
    ours = policies(**chart_values(settings))
    assert refusal == said
    if not said:
        assert ours["deviceshare-mutate-pods"].patched(a_request(new=pod)) == without_warnings(pod, result)


async def by_webhooks(webhooks: Webhooks, pod: Json) -> tuple[Json, str]:
    answer = await webhooks.ask("/mutate-pods", object=pod)
    if not answer["allowed"]:
        return {}, answer["status"]["message"]
    result = patched(pod, answer) if "patch" in answer else pod
    answer = await webhooks.ask("/validate-pods", object=result)
    return result, answer.get("status", {}).get("message", "")


def test_the_examples_are_what_they_are_called() -> None:
    """With the default settings."""
    assert [name for name in ADMITTED if injected_the_same(ADMITTED[name])] == []
    assert [name for name in {**REFUSED, **REFUSED_FIRST} if not injected_the_same(ALL[name])] == []


def test_a_container_whose_annotations_need_a_digest_is_refused_with_the_way_out() -> None:
    """CEL has no digests; the webhook takes such names."""
    said = injected_the_same(a_pod({"name": "b"}, asking(LONG_NAME)))

    assert said.startswith(f"spec.containers[1].name: '{LONG_NAME}' has {len(LONG_NAME)} characters; ")
    assert said.endswith(SHORTER)


@pytest.mark.parametrize("policy", ["deviceshare-mutate-pods", "deviceshare-pods", "deviceshare-bypasses"])
def test_pods_of_others_are_not_even_looked_at(policy: str) -> None:
    """What fails in a policy must never stop them: only the conditions see them."""
    empty: Json = {"metadata": {}, "spec": {}}
    hollow: Json = {"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "b", "resources": {}}]}}
    limited = a_pod({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    privileged = a_pod({"name": "main", "securityContext": {"privileged": True}})
    judged = policies()[policy]

    for pod in (empty, hollow, limited, privileged):
        for request in (
            a_request(new=pod),
            a_request("UPDATE", old=pod, new=pod),
            a_request("UPDATE", "ephemeralcontainers", old=pod, new=pod),
        ):
            assert not judged.is_called(request)
