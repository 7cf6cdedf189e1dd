"""What the mutating webhook makes of pods."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import Injection, inject, inject_ephemeral
from deviceshare.domain.admission.settings import InjectionSettings
from deviceshare.domain.objects.groups import Group, GroupMeta, GroupSpec, GroupStatus
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import DIALECTS
from tests.unit.domain.jsonpatch import applied

Json = dict[str, Any]
VARIABLES = tuple(vendor.env for vendor in vendors.VENDORS)
TAINTS = [vendor.resource for vendor in vendors.VENDORS if not vendor.resource.endswith("…")]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def a_pod(**spec: Any) -> Json:
    return {
        "metadata": {"name": "pod", "annotations": {"deviceshare.io/group": "team"}, "creationTimestamp": None},
        "spec": {"containers": [{"name": "main", "image": "busybox"}], **spec},
    }


def a_group(node: str = "", **selector: str) -> Group:
    return Group(GroupMeta(name="team"), GroupSpec({"nvidia.com/gpu": 1}, "binpack", selector), GroupStatus("", node))


def injection(pod: Json, group: Group | None = None) -> Injection:
    return inject(msgspec.convert(pod, Draft), group)


def injected(pod: Json, group: Group | None = None) -> Json:
    result: Json = applied(pod, injection(pod, group).patch)
    return result


def reference(name: str) -> Json:
    [vendor] = (each.name for each in vendors.VENDORS if each.env == name)
    path = f"metadata.annotations['deviceshare.io/{vendor}-visible-devices']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


REFERENCES = [reference(name) for name in VARIABLES]
CUDA = {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"}
GROWS = [
    {"name": "XLA_PYTHON_CLIENT_PREALLOCATE", "value": "false"},
    {"name": "TF_FORCE_GPU_ALLOW_GROWTH", "value": "true"},
]
PLAIN = [CUDA, *GROWS]
OF_SHARES = (
    *("DEVICESHARE_MEMORY_LIMIT_MIB", "DEVICESHARE_PERCENT", "DEVICESHARE_MEMORY_FRACTION", "METAGPU_MAX_MEM"),
    *("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    *(f"ALIYUN_COM_GPU_MEM_{what}" for what in ("IDX", "DEV", "POD", "CONTAINER")),
)
OBJECTS = decoder_of(Pod)


# Examples.


def test_every_container_of_every_kind_refers_to_the_annotations() -> None:
    """Containers, init containers and ephemeral containers alike, so that no way into the pod shows other devices."""
    pod = a_pod(initContainers=[{"name": "init"}], ephemeralContainers=[{"name": "debug"}])

    spec = injected(pod)["spec"]

    for field in ("containers", "initContainers", "ephemeralContainers"):
        assert spec[field][0]["env"] == [*REFERENCES, *PLAIN]
    path = REFERENCES[0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['deviceshare.io/nvidia-visible-devices']"


def test_the_variables_come_first_so_that_others_can_refer_to_them() -> None:
    """Kubernetes expands $(NAME) only where NAME stands before."""
    own = {"name": "MINE", "value": "$(NVIDIA_VISIBLE_DEVICES)"}

    env = injected(a_pod(containers=[{"name": "main", "env": [own]}]))["spec"]["containers"][0]["env"]

    assert env == [*REFERENCES, *PLAIN, own]


def test_a_hand_written_variable_gives_way_with_a_warning_that_names_it() -> None:
    """`NVIDIA_VISIBLE_DEVICES=all` in a manifest would show every GPU of the node."""
    hand_written = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    pod = a_pod(containers=[{"name": "main", "env": [hand_written, reference("NVIDIA_VISIBLE_DEVICES"), hand_written]}])

    result = injection(pod, a_group())

    assert applied(pod, result.patch)["spec"]["containers"][0]["env"] == [*REFERENCES, *PLAIN]
    [warning] = result.warnings
    assert "spec.containers[0] 'main'" in warning
    assert "NVIDIA_VISIBLE_DEVICES" in warning


def test_a_chosen_device_order_is_left_alone() -> None:
    """Whoever sets CUDA_DEVICE_ORDER knows why."""
    own = {"name": "CUDA_DEVICE_ORDER", "value": "FASTEST_FIRST"}

    env = injected(a_pod(containers=[{"name": "main", "env": [own]}]))["spec"]["containers"][0]["env"]

    assert env == [*REFERENCES, *GROWS, own]


@pytest.mark.parametrize("name", ["default-scheduler", "", None])
def test_the_default_scheduler_becomes_ours(name: str | None) -> None:
    """People who only set the annotation are served too."""
    assert injected(a_pod(schedulerName=name))["spec"]["schedulerName"] == "deviceshare-scheduler"


def test_another_scheduler_is_left_for_the_review_to_refuse() -> None:
    """It was chosen on purpose; changing it in silence would surprise."""
    assert injected(a_pod(schedulerName="volcano"))["spec"]["schedulerName"] == "volcano"


def test_the_group_is_mirrored_as_a_label() -> None:
    """Informers and webhooks select by labels only."""
    pod = a_pod()
    labelled = a_pod()
    labelled["metadata"]["labels"] = {"app": "a"}

    assert injected(pod)["metadata"]["labels"] == {"deviceshare.io/group": "team"}
    assert injected(labelled)["metadata"]["labels"] == {"app": "a", "deviceshare.io/group": "team"}


def test_what_only_deviceshare_may_write_is_taken_out_of_a_copied_pod() -> None:
    """A pod made from `kubectl get pod -o yaml` carries the devices that the first pod was given."""
    pod = a_pod()
    pod["metadata"]["annotations"] |= {
        "deviceshare.io/nvidia-visible-devices": "0,1",
        "deviceshare.io/group-uid": "1",
        "sandbox.deviceshare.io/env": "{}",
        "note": "mine",
    }

    result = injection(pod, a_group())

    left = applied(pod, result.patch)["metadata"]["annotations"]
    assert left == {"deviceshare.io/group": "team", "sandbox.deviceshare.io/env": "{}", "note": "mine"}
    assert [warning.split(" ")[0] for warning in result.warnings] == [
        "metadata.annotations[deviceshare.io/group-uid]",
        "metadata.annotations[deviceshare.io/nvidia-visible-devices]",
    ]


def test_a_group_that_does_not_exist_yet_is_warned_about() -> None:
    """A typing error shows at once, and order of creation doesn't matter."""
    [warning] = injection(a_pod()).warnings

    assert "'team' doesn't exist yet" in warning


def test_nothing_is_said_about_a_group_that_may_merely_not_be_known_yet() -> None:
    """Before the mirror has listed the groups, an absence means nothing."""
    assert inject(msgspec.convert(a_pod(), Draft), None, group_known=False).warnings == []


def test_where_a_pod_may_run_is_not_frozen_into_it() -> None:
    """The pod outlives what is so when it is admitted: its group may be recreated elsewhere, its selector changed."""
    own: Json = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}]}}}

    assert "affinity" not in injected(a_pod(), a_group("node-7", zone="a"))["spec"]
    assert injected(a_pod(affinity=own), a_group("node-7", zone="a"))["spec"]["affinity"] == own


def test_a_pod_without_a_group_is_left_alone() -> None:
    """Most pods of a cluster; and a copy of one that had devices, without the group that it named."""
    annotations = {"deviceshare.io/nvidia-visible-devices": "0", "example.com/grup": "x"}
    pod = {"metadata": {"name": "plain", "annotations": annotations}, "spec": {"containers": []}}

    assert injection(pod) == Injection()


@pytest.mark.parametrize(
    ("annotation", "label", "way_out"),
    [
        (None, "team", "with the annotation deviceshare.io/group: team"),
        ("team", "other", "leave the label out"),
        ("", None, "group's name is empty"),
        ("Team!", None, "use lower case letters"),
        ("a" * 64, None, "64 characters"),
    ],
)
def test_a_pod_that_names_its_group_wrongly_is_refused_with_the_way_out(
    annotation: str | None, label: str | None, way_out: str
) -> None:
    """The text names the field and what to do."""
    pod = a_pod()
    pod["metadata"]["annotations"] = {} if annotation is None else {"deviceshare.io/group": annotation}
    pod["metadata"]["labels"] = {} if label is None else {"deviceshare.io/group": label}

    result = injection(pod)

    assert result.refusal.startswith("metadata.")
    assert way_out in result.refusal
    assert not result.patch


def test_only_new_ephemeral_containers_are_changed_in_a_pod_that_runs() -> None:
    """`kubectl debug` adds one; the API server refuses any other change."""
    pod = a_pod(ephemeralContainers=[{"name": "old"}, {"name": "new"}])

    patch = inject_ephemeral(msgspec.convert(pod, Draft), {"old"}).patch

    wanted = copy.deepcopy(pod)
    wanted["spec"]["ephemeralContainers"][1]["env"] = [*REFERENCES, *PLAIN]
    assert applied(pod, patch) == wanted


def test_ephemeral_containers_of_other_pods_are_left_alone() -> None:
    """No group, no devices to show."""
    pod = {"metadata": {}, "spec": {"ephemeralContainers": [{"name": "new"}]}}

    assert inject_ephemeral(msgspec.convert(pod, Draft), ()) == Injection()


# Properties.

variables = st.one_of(
    st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from(VARIABLES), st.text(max_size=3)),
    st.sampled_from(REFERENCES),
    st.sampled_from(VARIABLES).map(
        lambda name: {
            "name": name,
            "valueFrom": {"fieldRef": {"fieldPath": reference(name)["valueFrom"]["fieldRef"]["fieldPath"]}},
        }
    ),
    st.sampled_from(VARIABLES).map(lambda name: reference(name) | {"value": "all"}),
    st.builds(
        lambda name, value: {"name": name, "value": value},
        st.sampled_from([each["name"] for each in PLAIN]),
        st.text(max_size=3),
    ),
    st.builds(
        lambda name, kind: {
            "name": name,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{kind}.a']"}},
        },
        st.sampled_from(OF_SHARES),
        st.sampled_from(["deviceshare.io/heap-fraction", "deviceshare.io/memory-limit-mib", "mine"]),
    ),
    st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from(OF_SHARES), st.text(max_size=3)),
    st.builds(lambda name: {"name": name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, st.text("AB")),
)
limits = st.one_of(
    st.builds(lambda name, size: {name: size}, st.sampled_from(sorted(DIALECTS)), st.sampled_from(["0", "3", 150])),
    st.just({"cpu": "1"}),
)
containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.text("abc", min_size=1, max_size=3), "image": st.just("busybox")},
        optional={
            "resources": st.none() | st.fixed_dictionaries({}, optional={"limits": st.none() | limits}),
            "envFrom": st.just([{"configMapRef": {"name": "settings"}}]),
            "env": st.none() | st.lists(variables, max_size=5),
            "securityContext": st.fixed_dictionaries({"privileged": st.booleans(), "runAsUser": st.just(0)}),
        },
    ),
    min_size=1,
    max_size=3,
)
labels = st.dictionaries(st.sampled_from(["zone", "deviceshare.io/mode"]), st.sampled_from(["a", "b", "shared"]))
node_names = st.sampled_from(["node-1", "node-2"])


def requirement(key: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> st.SearchStrategy[Json]:
    return st.builds(
        lambda key, operator, value: {"key": key, "operator": operator, "values": [value]},
        key,
        st.sampled_from(["In", "NotIn"]),
        values,
    )


terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(
            requirement(st.sampled_from(["zone", "deviceshare.io/mode"]), st.sampled_from(["a", "b", "shared"])),
            max_size=2,
        ),
        "matchFields": st.lists(requirement(st.just("metadata.name"), node_names), max_size=1),
    },
)
affinities = st.fixed_dictionaries(
    {},
    optional={
        "podAffinity": st.just({"preferredDuringSchedulingIgnoredDuringExecution": []}),
        "nodeAffinity": st.fixed_dictionaries(
            {},
            optional={
                REQUIRED: st.fixed_dictionaries({"nodeSelectorTerms": st.lists(terms, min_size=1, max_size=3)}),
                "preferredDuringSchedulingIgnoredDuringExecution": st.just([]),
            },
        ),
    },
)
tolerations = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from([*TAINTS, "team"]),
        "operator": st.just("Exists"),
        "effect": st.sampled_from(["NoSchedule", "NoExecute"]),
    },
).map(lambda each: each if "key" in each else each | {"operator": "Exists"})
group_pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "annotations": st.dictionaries(
                    st.sampled_from(["deviceshare.io/pod-uid", "nvidia.cdi.k8s.io/a~b", "note"]), st.text(max_size=3)
                ).map(lambda own: own | {"deviceshare.io/group": "team"})
            },
            optional={"labels": st.just({"app": "a"}) | st.just({"deviceshare.io/group": "team"})},
        ),
        "spec": st.fixed_dictionaries(
            {"containers": containers},
            optional={
                "initContainers": containers,
                "ephemeralContainers": containers,
                "schedulerName": st.sampled_from(["default-scheduler", "deviceshare-scheduler", "other"]),
                "affinity": st.none() | affinities,
                "hostNetwork": st.booleans(),
                "tolerations": st.none() | st.lists(tolerations, max_size=2),
            },
        ),
    }
)


def without_group(pod: Json) -> Json:
    """The pod, naming no group; with the label of a share, where it had one."""
    metadata = pod["metadata"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key != "deviceshare.io/group"}
    labels = {key: "" if key == "deviceshare.io/group" else value for key, value in metadata.get("labels", {}).items()}
    return pod | {"metadata": {"annotations": annotations, "labels": labels}}


share_pods = group_pods.map(without_group).filter(lambda pod: bool(msgspec.convert(pod, Draft).spec.share))
pods = group_pods | share_pods
groups = st.none() | st.builds(lambda node, selector: a_group(node, **selector), st.just("") | node_names, labels)


@settings(deadline=None)
@given(pods, groups)
def test_a_pod_is_complete_after_injection(pod: Json, group: Group | None) -> None:
    """What the extender asks before it binds, and what the review asks before it admits, holds."""
    result = injected(pod, group)

    named = {key: value for key, value in pod["metadata"]["annotations"].items() if key in contract.USERS}
    assert OBJECTS.decode(msgspec.json.encode(result)).injected
    assert result["metadata"]["labels"]["deviceshare.io/group"] == named.get("deviceshare.io/group", "")
    owned = {key for key in result["metadata"]["annotations"] if key.startswith(contract.PREFIX)}
    assert owned - {contract.WARNINGS} == named.keys()


@settings(deadline=None)
@given(pods, groups)
def test_injecting_twice_changes_nothing_more(pod: Json, group: Group | None) -> None:
    """API servers send a pod again when another webhook has changed it."""
    once = injection(pod, group)
    twice = injection(applied(pod, once.patch), group)

    assert not twice.patch
    assert set(twice.warnings) <= set(once.warnings)


@settings(deadline=None)
@given(pods, groups)
def test_injection_changes_nothing_else(pod: Json, group: Group | None) -> None:
    """What the user wrote stays as it was written, but for the parts that are deviceshare's."""
    assert users_part(injected(pod, group)) == users_part(pod)


def users_part(pod: Json) -> Json:
    """The pod without what belongs to deviceshare."""
    pod = copy.deepcopy(pod)
    metadata, spec = pod["metadata"], pod["spec"]
    for field in ("annotations", "labels"):
        entries = metadata.pop(field, {}).items()
        metadata[field] = {
            key: value for key, value in entries if not key.startswith(("deviceshare.io/", "nvidia.cdi"))
        }
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(field, []):
            env = container.get("env") or []
            ours = {*VARIABLES, *OF_SHARES} | {each["name"] for each in PLAIN if each in env}
            container["env"] = [entry for entry in env if entry["name"] not in ours]
    if spec.pop("schedulerName", "") == "other":
        spec["schedulerName"] = "other"
    added = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in TAINTS]
    spec["tolerations"] = [each for each in spec.get("tolerations") or [] if each not in added]
    return pod


def tolerated(pod: Json) -> list[str]:
    """The keys of the taints that the injected pod tolerates."""
    return [each.get("key", "") for each in injected(pod)["spec"].get("tolerations") or []]


def test_a_pod_tolerates_the_taints_of_the_devices_that_it_may_get() -> None:
    """Kubernetes adds that to pods that request them by the vendor's resource, which ours don't."""
    group: Json = {
        "metadata": {"annotations": {"deviceshare.io/group": "team"}},
        "spec": {"containers": [{"name": "a"}]},
    }
    asking = {"name": "a", "resources": {"limits": {"cnvrg.io/metagpu": "50"}}}
    share: Json = {"metadata": {}, "spec": {"containers": [asking]}}
    assert tolerated(group) == TAINTS
    assert tolerated(share) == ["nvidia.com/gpu"]
    own = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert tolerated({**group, "spec": {**group["spec"], "tolerations": [own]}}) == TAINTS
    assert tolerated({**share, "spec": {**share["spec"], "tolerations": [{"operator": "Exists"}]}}) == [""]


def test_pods_tolerate_nothing_where_a_setting_says_so() -> None:
    """`handover.tolerations=false`."""
    pod = msgspec.convert({"metadata": {"annotations": {"deviceshare.io/group": "team"}}}, Draft)
    assert "/spec/tolerations" not in [
        each["path"] for each in inject(pod, None, settings=InjectionSettings(tolerations=False)).patch
    ]
