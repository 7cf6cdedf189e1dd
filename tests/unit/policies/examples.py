"""Pods that admission has something to say to, sound and faulty, whole enough for an API server to admit them."""

from typing import Any, Final

Json = dict[str, Any]

_GROUP: Final = {"deviceshare.io/group": "team"}
LONG_NAME: Final = "a-name-of-more-than-forty-characters-of-which-annotations-hold-a-digest"[:62]


def reference(name: str, annotation: str) -> Json:
    """A variable that refers to one of deviceshare's annotations."""
    path = f"metadata.annotations['deviceshare.io/{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def a_pod(*containers: Json, annotations: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    """One with a container `main`, or these."""
    metadata = {"name": "pod", "annotations": annotations or {}, "labels": labels or {}}
    whole = [{"image": "busybox", **each} for each in containers or ({"name": "main"},)]
    body = {"containers": whole, "automountServiceAccountToken": False, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def in_group(*containers: Json, **spec: Any) -> Json:
    """One that joins the group `team`."""
    return a_pod(*containers, annotations=_GROUP | spec.pop("annotations", {}), **spec)


def asking(name: str = "main", resource: str = "deviceshare.io/gpu-mem", size: str = "3", **more: Any) -> Json:
    """A container that asks for a share."""
    return {"name": name, "image": "busybox", "resources": {"limits": {resource: size}}, **more}


_INIT: Final = {"name": "init", "image": "busybox"}
_OWN: Final = [
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "MINE", "value": "$(NVIDIA_VISIBLE_DEVICES)"},
    {"name": "CUDA_DEVICE_ORDER", "value": "FASTEST_FIRST"},
    {"name": "AMD_VISIBLE_DEVICES", "value": "0"},
    {"name": "AMD_VISIBLE_DEVICES", "value": "1"},
]
_FRAMEWORKS: Final = [
    {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "max_split_size_mb:512"},
    {"name": "XLA_CLIENT_MEM_FRACTION", "value": ".5"},
    {"name": "TF_FORCE_GPU_ALLOW_GROWTH", "value": "false"},
    reference("XLA_PYTHON_CLIENT_MEM_FRACTION", "heap-fraction.another"),
    reference("METAGPU_MAX_MEM", "memory-limit-mib.another"),
    reference("DEVICESHARE_PERCENT", "percent.another"),
    {"name": "ALIYUN_COM_GPU_MEM_POD", "value": "99"},
]
_ENV_FROM: Final = [{"configMapRef": {"name": "settings", "optional": True}}]

ADMITTED: Final[dict[str, Json]] = {
    "plain": a_pod({"name": "main", "env": _OWN}),
    "group": in_group(),
    "group with init containers": in_group({"name": "a"}, {"name": "b"}, initContainers=[_INIT]),
    "group with variables": in_group({"name": "main", "env": _OWN}),
    "group with labels": in_group(labels={"app": "a"}),
    "group behind another's gate": in_group(schedulingGates=[{"name": "example.com/quota"}]),
    "group that names our scheduler": in_group(schedulerName="deviceshare-scheduler"),
    "group, labelled": in_group(labels=dict(_GROUP)),
    "group, copied": in_group(
        {"name": "main", "env": [reference("NVIDIA_VISIBLE_DEVICES", "nvidia-visible-devices"), *_OWN]},
        annotations={
            "deviceshare.io/group-uid": "1",
            "deviceshare.io/percent.another": "9",
            "nvidia.cdi.k8s.io/pod": "x",
        },
    ),
    "group, scheduled by us": in_group(schedulerName="deviceshare-scheduler"),
    "group with a plain limit": in_group({"name": "main", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
    "group with a limit of none": in_group({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "0"}}}),
    "devices' annotations of a copied pod": a_pod(annotations={"deviceshare.io/nvidia-devices.main": "0"}),
    "limits of others": a_pod(asking(resource="aliyun.com/gpu-count"), asking("b", "example.com/gpu_mem")),
    "share": a_pod(asking()),
    "shares of nothing": a_pod(asking("a", size="0"), asking("b", "deviceshare.io/gpu-percent", "0")),
    "share by percent": a_pod(asking(resource="deviceshare.io/gpu-percent", size="250"), {"name": "other"}),
    "shares of both vendors and of one": a_pod(asking("a"), asking("b", "aliyun.com/gpu-mem", "2")),
    "share for gpushare": a_pod(asking("a", "aliyun.com/gpu-mem", "1k"), schedulerName="gpushare-scheduler"),
    "shares of metagpu": a_pod(asking("a", "cnvrg.io/metagpu", "50"), asking("b", "cnvrg.io/metagpu", "0")),
    "shares in init containers": a_pod(
        asking("a", "aliyun.com/gpu-mem"),
        initContainers=[
            asking("i", "aliyun.com/gpu-mem", "5"),
            asking("s", "aliyun.com/gpu-mem", "4", restartPolicy="Always"),
        ],
    ),
    "share with variables": a_pod(asking(env=[*_FRAMEWORKS, *_OWN])),
    "share with variables from elsewhere": a_pod(
        asking(resource="cnvrg.io/metagpu", env=_FRAMEWORKS[3:], envFrom=_ENV_FROM)
    ),
    "share in a group": in_group(asking("a"), {"name": "b"}, annotations={"deviceshare.io/strategy": "spread"}),
    "share that has to be enforced": a_pod(
        asking(), annotations={"deviceshare.io/isolation": "required", "deviceshare.io/gpu-mem-burst": "16"}
    ),
    "share with the hook's variables": a_pod(
        asking(
            env=[{"name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "1"}, {"name": "NVIDIA_GPU_MEMORY_REQUEST", "value": "1"}]
        )
    ),
    "share, labelled": a_pod(asking(), labels={"deviceshare.io/group": ""}),
    "forty characters": a_pod(asking("n" * 40)),
    "a long name that asks for nothing": a_pod(asking(), {"name": LONG_NAME}),
}
"""The API server has no objection to them."""

REFUSED: Final[dict[str, Json]] = {
    "no name": a_pod(annotations={"deviceshare.io/group": ""}),
    "a bad name": a_pod(annotations={"deviceshare.io/group": 'Team A\'s \\ "team"'}),
    "a bad name with a quotation mark": a_pod(annotations={"deviceshare.io/group": "team's"}),
    "a name of another script": a_pod(annotations={"deviceshare.io/group": "équipe-团队"}),
    "a long name": a_pod(annotations={"deviceshare.io/group": "t" * 64}),
    "a label only": a_pod(labels=dict(_GROUP)),
    "an empty label only": a_pod(labels={"deviceshare.io/group": ""}),
    "another label": in_group(labels={"deviceshare.io/group": "other"}),
    "a strategy without a share": in_group(annotations={"deviceshare.io/strategy": "spread"}),
    "a strategy that isn't": a_pod(asking(), annotations={"deviceshare.io/strategy": "best" * 30}),
    "an isolation without a share": in_group(annotations={"deviceshare.io/isolation": "required"}),
    "an isolation that isn't": a_pod(asking(), annotations={"deviceshare.io/isolation": "strict" * 20}),
    "a burst without a share": in_group(annotations={"deviceshare.io/gpu-mem-burst": "16"}),
    "a burst in Gi": a_pod(asking(), annotations={"deviceshare.io/gpu-mem-burst": "16Gi"}),
    "a node": in_group(nodeName="node-1"),
    "a node for a share": a_pod(asking(), nodeName="node-1"),
    "another scheduler": in_group(schedulerName="volcano"),
    "another scheduler for a share": a_pod(asking(), schedulerName="volcano"),
    "own devices": in_group({"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}),
    "own parts of devices": in_group(
        initContainers=[{**_INIT, "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1", "amd.com/gpu": "1"}}}]
    ),
    "own devices beside a share": a_pod(asking("a"), asking("b", "huawei.com/Ascend910", "1")),
    "two shares in one container": a_pod(
        {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "1", "cnvrg.io/metagpu": "5"}}}
    ),
    "three shares in one container": a_pod(
        asking("b", "deviceshare.io/gpu-percent", "999999"),
        {
            "name": "main",
            "resources": {
                "limits": {"aliyun.com/gpu-mem": "1", "cnvrg.io/metagpu": "5", "deviceshare.io/gpu-mem": "2"}
            },
        },
    ),
    "bytes": a_pod(asking(size="8Gi")),
    "MiB": a_pod(asking(size="16777216")),
    "a misspelt annotation": a_pod(annotations={"deviceshare.io/grup": "team"}),
    "a misspelt annotation beside the group": in_group(annotations={"deviceshare.io/stratgy": "spread"}),
    "a misspelt limit": a_pod({"name": "other"}, asking(resource="deviceshare.io/gpu-memory")),
    "a misspelt limit of gpushare": a_pod({"name": "a"}, initContainers=[asking(resource="aliyun.com/gpu_mem")]),
    "a misspelt limit of metagpu beside a share": a_pod(asking("a"), asking("b", "cnvrg.io/metagpus", "50")),
    "MiB of a small card": a_pod(asking(resource="aliyun.com/gpu-mem", size="16276")),
    "too many percent": a_pod(asking(resource="cnvrg.io/metagpu", size="6401")),
    "too many devices": a_pod(*(asking(f"c{i}", "deviceshare.io/gpu-percent", "1650") for i in range(4))),
}
"""Nor to these."""

REFUSED_FIRST: Final[dict[str, Json]] = {
    "a negative share": a_pod(asking(size="-1")),
    "part of a GiB": a_pod(asking(size="1500m")),
    "a share of the whole pod": in_group(resources={"limits": {"deviceshare.io/gpu-mem": "3"}}),
}
"""The API server itself refuses these, in words of its own, before a policy that validates sees them."""
