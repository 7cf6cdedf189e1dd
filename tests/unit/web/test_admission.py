"""The webhooks over HTTP: what the API server sends of pods, or sends that is no review, and what it is answered."""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from deviceshare.domain import contract
from deviceshare.domain.admission.settings import InjectionSettings
from deviceshare.domain.objects.groups import AllowedNamespaces, Group, GroupMeta, GroupSpec, LabelSelector
from deviceshare.domain.placement.join_obstacles import Namespaces
from deviceshare.web.admission import MAX_BODY, namespace_of
from tests.unit.web.webhooks import IDENTITY, Json, Webhooks, a_pod, patched, ready

# Namespaces.


async def test_a_pod_of_a_namespace_that_its_group_does_not_allow_is_refused() -> None:
    """By the request's namespace; one whose labels aren't known yet is admitted, and bind decides."""
    allowed = AllowedNamespaces("Selector", LabelSelector({"team": "vision"}), ["a"], "ask ada")
    closed = Group(GroupMeta(name="team", uid="1"), GroupSpec({"nvidia.com/gpu": 1}, allowed_namespaces=allowed))
    namespaces = Namespaces()
    namespaces.set_labels("b", {"team": "speech"})
    async with Webhooks(namespaces=namespaces, group=closed) as webhooks:
        pod = ready(a_pod())
        answers = {name: await webhooks.ask("/validate-pods", object=pod, namespace=name) for name in ("a", "b", "new")}
    assert [answers[name]["allowed"] for name in ("a", "b", "new")] == [True, False, True]
    said = answers["b"]["status"]["message"]
    assert said.startswith("metadata.annotations[deviceshare.io/group]: group team takes no pods of namespace b, only")
    assert said.endswith("namespace a and those of namespaces with the labels team=vision; its owner says: ask ada")


# Ways around.


AROUND = {"hostPID": True, "containers": [{"name": "main"}]}


@pytest.mark.parametrize("webhooks", ["warn", "refuse"], indirect=True)
async def test_a_way_around_is_warned_of_or_refused_as_set(webhooks: Webhooks, request: pytest.FixtureRequest) -> None:
    """Of pods of groups only, and of each container that comes later."""
    refuses = request.node.callspec.params["webhooks"] == "refuse"
    pod = ready(a_pod() | {"spec": AROUND})
    debugged = ready(a_pod())
    privileged = {"name": "debug", "securityContext": {"privileged": True}}
    debugging = ready(debugged | {"spec": {**debugged["spec"], "ephemeralContainers": [privileged]}})
    annotated = {**debugged, "metadata": {**debugged["metadata"]}}
    annotated["metadata"]["annotations"] = {**debugged["metadata"]["annotations"], "cdi.k8s.io/x": "x=all"}
    later: Json = {"operation": "UPDATE", "oldObject": debugged}

    answers = [
        await webhooks.ask("/validate-pods", object=pod),
        await webhooks.ask("/validate-pods", object=debugging, subResource="ephemeralcontainers", **later),
        await webhooks.ask("/validate-pods", object=annotated, **later),
    ]
    for answer, word in zip(answers, ("spec.hostPID", "'debug' is privileged", "cdi.k8s.io/x"), strict=True):
        assert answer["allowed"] is not refuses
        assert word in (answer["status"]["message"] if refuses else " ".join(answer["warnings"]))
        assert ("warnings" in answer) is not refuses
    plain = a_pod(group=None) | {"spec": AROUND}
    assert await webhooks.ask("/validate-pods", object=plain) == {"uid": "42", "allowed": True}


@pytest.mark.parametrize("webhooks", ["refuse"], indirect=True)
async def test_what_was_let_in_before_may_be_changed(webhooks: Webhooks) -> None:
    """A stricter setting must not keep a running pod from being labelled, debugged or given devices."""
    old = ready(a_pod() | {"spec": AROUND})
    old["metadata"]["annotations"]["cdi.k8s.io/x"] = "1"
    new = {**old, "metadata": {**old["metadata"], "labels": {**old["metadata"]["labels"], "tier": "web"}}}
    debugging = ready(old | {"spec": {**old["spec"], "ephemeralContainers": [{"name": "debug"}]}})
    around = {"nvidia.cdi.k8s.io/pod": "x=1"}
    given = {**old, "metadata": {**old["metadata"], "annotations": {**old["metadata"]["annotations"], **around}}}

    for request in (
        {"object": new},
        {"object": debugging, "subResource": "ephemeralcontainers"},
        {"object": given, "user": IDENTITY},
    ):
        assert (await webhooks.ask("/validate-pods", operation="UPDATE", oldObject=old, **request))["allowed"]


# Mutation.


async def test_a_pod_of_a_group_comes_back_ready(webhooks: Webhooks) -> None:
    """And passes the review that stands behind, as in the API server."""
    response = await webhooks.ask("/mutate-pods", object=a_pod())
    pod = patched(a_pod(), response)

    assert response["allowed"]
    assert "warnings" not in response
    assert pod["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert (await webhooks.ask("/validate-pods", object=pod)) == {"uid": "42", "allowed": True}
    assert "patch" not in await webhooks.ask("/mutate-pods", object=pod)


@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods"])
async def test_other_pods_pass_whatever_they_hold(webhooks: Webhooks, path: str) -> None:
    """Not even their spec is read."""
    pod = a_pod(group=None) | {"spec": "of a kind that we have never seen"}

    assert await webhooks.ask(path, object=pod) == {"uid": "42", "allowed": True}


SHARE = [{"name": "main", "image": "busybox", "resources": {"limits": {"aliyun.com/gpu-mem": "3", "cpu": None}}}]


async def test_a_pod_that_asks_for_a_share_comes_back_ready(webhooks: Webhooks) -> None:
    """It says so by its limits alone, and passes the review that stands behind."""
    pod = a_pod(group=None, containers=SHARE, initContainers=None)

    ready = patched(pod, await webhooks.ask("/mutate-pods", object=pod))

    assert ready["metadata"]["labels"] == {"deviceshare.io/group": ""}
    assert (await webhooks.ask("/validate-pods", object=ready)) == {"uid": "42", "allowed": True}
    assert "patch" not in await webhooks.ask("/mutate-pods", object=ready)


@pytest.mark.parametrize("resources", [None, {}, {"limits": None}, {"limits": {"cpu": "1"}}])
async def test_who_merely_speaks_of_shares_asks_for_none(webhooks: Webhooks, resources: Json | None) -> None:
    """A pod that was applied by kubectl carries its former manifest, whatever it asks for now; Go writes nulls."""
    pod = a_pod(group=None, containers=[None, {"name": "main", "resources": resources}])
    pod["metadata"]["annotations"]["note"] = json.dumps(SHARE)

    assert await webhooks.ask("/mutate-pods", object=pod) == {"uid": "42", "allowed": True}


@pytest.mark.parametrize(
    "webhooks", [{"injection": InjectionSettings(dialects=frozenset()), "largest": lambda _: 1024}], indirect=True
)
async def test_settings_and_nodes_decide_which_shares_are_served(webhooks: Webhooks) -> None:
    """A dialect that is off is left to its own system; more than any node has is refused at once."""
    pod = a_pod(group=None, containers=SHARE)
    for path in ("/mutate-pods", "/validate-pods"):
        assert await webhooks.ask(path, object=pod) == {"uid": "42", "allowed": True}

    large = [{"name": "main", "resources": {"limits": {"deviceshare.io/gpu-mem": "3"}}}]
    pod = a_pod(group=None, containers=large)
    answer = await webhooks.ask("/validate-pods", object=patched(pod, await webhooks.ask("/mutate-pods", object=pod)))
    assert "ask for at most 1" in answer["status"]["message"]


async def test_a_dry_run_gets_the_same_answer(webhooks: Webhooks) -> None:
    """There is nothing to leave out: no webhook does anything but answer."""
    asked = await webhooks.ask("/mutate-pods", object=a_pod())

    assert await webhooks.ask("/mutate-pods", object=a_pod(), dryRun=True) == asked


async def test_a_missing_group_is_warned_about_only_once_the_groups_are_known(webhooks: Webhooks) -> None:
    """Right after the start nothing can be said about it."""
    [warning] = (await webhooks.ask("/mutate-pods", object=a_pod(group="other")))["warnings"]
    assert "'other' doesn't exist yet" in warning

    webhooks.groups.synced = False
    response = await webhooks.ask("/mutate-pods", object=a_pod(group="other"))

    assert "warnings" not in response
    assert "patch" in response


async def test_a_pod_that_names_its_group_wrongly_is_refused(webhooks: Webhooks) -> None:
    """The user's client shows the message."""
    response = await webhooks.ask("/mutate-pods", object=a_pod(group="Team!"))

    assert not response["allowed"]
    assert response["status"]["code"] == 403
    assert response["status"]["message"].startswith("metadata.annotations[deviceshare.io/group]: ")


async def test_warnings_stay_within_what_the_api_server_passes_on(webhooks: Webhooks) -> None:
    """It cuts at 4096 characters; a pod of a hundred containers must not lose the count."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    containers = [{"name": f"{number:0300}", "env": env} for number in range(100)]

    warnings = (await webhooks.ask("/mutate-pods", object=a_pod(containers=containers)))["warnings"]

    assert sum(map(len, warnings)) <= 4096
    assert all(len(warning) <= 256 for warning in warnings)
    assert warnings[-1] == "… and 85 more warnings"


async def test_a_debug_container_sees_the_groups_devices_too(webhooks: Webhooks) -> None:
    """`kubectl debug` asks through a subresource; containers that are there already are left alone."""
    old = a_pod(label="team", ephemeralContainers=[{"name": "old"}])
    new = a_pod(label="team", ephemeralContainers=[{"name": "old"}, {"name": "new"}])
    request: Json = {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": old}

    refused = await webhooks.ask("/validate-pods", object=new, **request)
    pod = patched(new, await webhooks.ask("/mutate-pods", object=new, **request))

    assert not refused["allowed"]
    assert (await webhooks.ask("/validate-pods", object=pod, **request))["allowed"]
    old_container, new_container = pod["spec"].pop("ephemeralContainers")
    assert old_container == {"name": "old"}
    assert new_container["env"][0]["name"] == "NVIDIA_VISIBLE_DEVICES"
    assert pod["spec"] == {key: value for key, value in old["spec"].items() if key != "ephemeralContainers"}


async def test_an_update_of_a_pod_is_not_mutated(webhooks: Webhooks) -> None:
    """Nearly all of a pod is fixed once it exists."""
    response = await webhooks.ask("/mutate-pods", operation="UPDATE", object=a_pod(), oldObject=a_pod())

    assert response == {"uid": "42", "allowed": True}


# Validation of pods.


async def test_only_deviceshare_changes_its_annotations(webhooks: Webhooks) -> None:
    """Who asks is told by the review, and can't be forged by the user."""
    old, new = a_pod(label="team"), a_pod(label="team")
    new["metadata"]["annotations"]["deviceshare.io/nvidia-visible-devices"] = "0,1"
    request: Json = {"operation": "UPDATE", "object": new, "oldObject": old}

    refused = await webhooks.ask("/validate-pods", **request)

    assert "deviceshare.io/nvidia-visible-devices" in refused["status"]["message"]
    assert (await webhooks.ask("/validate-pods", user=IDENTITY, **request))["allowed"]


async def test_taking_a_pod_out_of_its_group_is_refused_though_the_new_object_says_nothing_of_it(
    webhooks: Webhooks,
) -> None:
    """The old object counts as well."""
    response = await webhooks.ask(
        "/validate-pods", operation="UPDATE", object=a_pod(group=None), oldObject=a_pod(label="team")
    )

    assert not response["allowed"]


async def test_deleting_a_pod_is_anybodys_right(webhooks: Webhooks) -> None:
    """A webhook rule that is wider than ours must not trap pods."""
    assert (await webhooks.ask("/validate-pods", operation="DELETE", oldObject=a_pod()))["allowed"]


# What is no review.


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not a JSON AdmissionReview"),
        (b"{", "not a JSON AdmissionReview"),
        (b"\xff\xfe", "not a JSON AdmissionReview"),
        (b'"' + b"\xff" + b'"', "not a JSON AdmissionReview"),
        (b"[" * 100_000, "not a JSON AdmissionReview"),
        (b"[]", "not a JSON AdmissionReview"),
        (b"{}", "expected an AdmissionReview of admission.k8s.io/v1, got no kind of no apiVersion"),
        (
            b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "1"}}',
            "got AdmissionReview of admission.k8s.io/v1beta1; register the webhook with admissionReviewVersions: [v1]",
        ),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}', "request can't be read"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}', "`uid`"),
        (
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "kind": {}}}',
            "not none; correct the rules of the webhook configuration",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/mutate-pods", "/mutate-groups", "/validate-pods", "/validate-groups"])
async def test_what_is_no_review_is_answered_400_with_what_was_expected(
    webhooks: Webhooks, path: str, body: bytes, text: str
) -> None:
    """Never a 500, and never an answer that looks like a verdict."""
    status, answer = await webhooks.post(path, body)

    assert status == 400
    assert text in answer


async def test_an_object_that_is_missing_or_odd_is_refused_by_name(webhooks: Webhooks) -> None:
    """The review is sound, so the answer is a verdict."""
    missing = await webhooks.ask("/validate-groups", "SharedDeviceGroup", operation="DELETE")
    odd = await webhooks.ask("/mutate-pods", object=a_pod(containers={"main": {}}))

    assert missing["status"]["code"] == odd["status"]["code"] == 400
    assert "$.spec.containers" in odd["status"]["message"]


async def test_a_huge_body_is_answered_413(webhooks: Webhooks) -> None:
    """No review of objects that fit into etcd is as long."""
    status, _ = await webhooks.post("/mutate-pods", b" " * (MAX_BODY + 1))

    assert status == 413


async def test_refusals_and_faults_are_told_apart_in_the_metrics(webhooks: Webhooks) -> None:
    """A user's mistake is no failure of ours."""
    await webhooks.ask("/mutate-pods", object=a_pod())
    await webhooks.ask("/mutate-pods", object=a_pod(group="Team!"))
    await webhooks.post("/mutate-pods", b"{")

    for result in ("ok", "refused", "error"):
        labels = {"verb": "mutate-pods", "result": result}
        assert webhooks.metrics.registry.get_sample_value("deviceshare_requests_total", labels) == 1


@pytest.mark.parametrize("name", [["B"], {"a": 1}, None, 1], ids=str)
async def test_a_variable_whose_name_is_no_text_is_left_to_the_api_server(webhooks: Webhooks, name: Any) -> None:
    """The webhook sees pods before anybody has checked them."""
    answer = await webhooks.ask("/mutate-pods", object=a_pod(containers=[{"name": "c", "env": [{"name": name}]}]))
    assert answer["allowed"]


async def test_costly_reviews_are_refused_before_they_cost(webhooks: Webhooks) -> None:
    """Three bytes a container would become two kilobytes of a patch, while everybody waits."""
    many = await webhooks.ask("/mutate-pods", object=a_pod(containers=[{}] * 501))
    assert "501 containers of a kind in a pod are more than deviceshare accepts" in many["status"]["message"]

    ours = {"deviceshare.io/group": "team", **{f"deviceshare.io/{number}": "" for number in range(100)}}
    copied = await webhooks.ask("/mutate-pods", object={"metadata": {"annotations": ours}, "spec": {}})
    assert "annotations of a pod that begin with deviceshare.io/" in copied["status"]["message"]

    status, text = await webhooks.post("/mutate-pods", b"[" + b"{}," * 30_000 + b"{}]")
    assert (status, "more than 50000 members" in text) == (400, True)


async def test_our_own_updates_of_a_pod_are_never_refused_for_its_size(webhooks: Webhooks) -> None:
    """Its owner may have filled it with what is costly to review; a release must be able to touch it all the same."""
    costly = a_pod(containers=[{"name": "main", "args": [""] * 30_000}])
    several = a_pod(containers=[{"name": f"c{number}"} for number in range(501)])
    for pod in (costly, several):
        asked: Json = {"operation": "UPDATE", "object": pod, "oldObject": pod}
        for path in ("/mutate-pods", "/validate-pods"):
            assert (await webhooks.ask(path, user=contract.IDENTITY, **asked))["allowed"]
    body = {"request": {"userInfo": {"username": "somebody"}, "object": costly, "oldObject": costly}}
    status, _ = await webhooks.post("/validate-pods", json.dumps(body).encode())
    assert status == 400, "of others it is"


def test_the_tenant_of_a_review_is_the_namespace_that_the_api_server_says() -> None:
    """It stands before the object, which may say what it likes."""
    review: Json = {"request": {"uid": "1", "namespace": "team", "object": {"metadata": {"namespace": "other"}}}}
    assert namespace_of(json.dumps(review, separators=(",", ":")).encode()) == "team"
    assert namespace_of(b"{") == ""


async def test_a_pod_with_a_table_in_an_annotation_is_no_costly_review(webhooks: Webhooks) -> None:
    """Only members cost; strings may hold any number of commas, brackets and quotes."""
    table = ",".join(["0.5", '{"a":[\\"b\\\\"'] * 30_000)
    answer = await webhooks.ask("/mutate-pods", object={"metadata": {"annotations": {"table": table}}, "spec": {}})
    assert answer["allowed"]


async def test_what_is_no_review_is_quoted_with_a_bound(webhooks: Webhooks) -> None:
    """In the answer and in the log, where it comes once in a while only."""
    body = json.dumps({"apiVersion": "v1", "kind": "\x1b" + "x" * 1_000_000}).encode()
    with capture_logs() as logs:
        for _ in range(5):
            status, text = await webhooks.post("/mutate-pods", body)
            assert (status, len(text) < 1000, "\x1b" in text) == (400, True, False)
    assert len(logs) == 1
    assert len(str(logs[0])) < 1000
