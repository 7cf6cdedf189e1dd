"""`deviceshare smi`: inside a container, the devices of its pod and the processes on them.

It asks NVML, as nvidia-smi does, and no API server. NVIDIA's runtime shows a container its own GPUs only; a privileged
one sees all GPUs of the node, and those of others are left out here.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from deviceshare.cli.output import show, table
from deviceshare.domain import contract, vendors
from deviceshare.domain.answers.pod_view import POD_COLUMNS, PodDeviceView, pod_rows
from deviceshare.domain.device_health.examination import DeviceUse
from deviceshare.domain.objects.hardware import Part
from deviceshare.domain.objects.shares import GPU_MEM
from deviceshare.domain.objects.usage import DeviceProcess, Sighting
from deviceshare.nvidia import Driver, NoDriver, NoLibrary, NvmlRefused, read_inventory, read_usage

ALL = "all"
VOID = "void"
"""NVIDIA's runtime shows no GPU by it, as by "" and "none"; or a runtime leaves it where it has injected the pod's
devices, and no others, by CDI."""
_PROC = Path("/proc")


@click.command(
    short_help="Inside a container: what its own devices do now.",
    epilog="""\b
Examples:
  kubectl exec POD -- deviceshare smi     where the image has deviceshare in it
  watch -n 2 deviceshare smi

\b
Exit codes: 0 shown, 1 this pod has no device or none can be read, 2 wrong flags.""",
)
@click.option(
    "--report", type=click.Path(path_type=Path), hidden=True, help="For doctor --gpu: the file to write a sighting to."
)
def smi(report: Path | None) -> None:
    """Show the devices of the pod that this runs in, their memory, and the processes on them.

    NVIDIA's only. Needs no access to the cluster. Processes of other pods on the same devices are shown without a name,
    or not at all, depending on the driver.
    """
    if report:
        report.write_bytes(msgspec.json.encode(_sighting(os.environ)))
        return
    words, mine, models = _visible(os.environ), list[DeviceUse](), dict[str, Part]()
    why = f"{vendors.NVIDIA.env} names {','.join(words)}, but none of them is here; see whether they are healthy:"
    why = f"{why} deviceshare inspect -d"
    try:
        with Driver():
            models = {part.uuid: part for part in read_inventory().devices}
            mine = _mine(read_usage(), words)
    except (NoDriver, NvmlRefused) as error:
        why = str(error)
    if not mine:
        raise click.ClickException(_no_device(VOID) if words == [VOID] else why)
    show(table(POD_COLUMNS, pod_rows(_view(use, models.get(use.uuid)) for use in mine)))


def _sighting(environment: Mapping[str, str]) -> Sighting:
    """All GPUs that NVML shows here, whatever the variable says."""
    variable = environment.get(vendors.NVIDIA.env)
    try:
        with Driver():
            inventory = read_inventory()
    except (NoDriver, NvmlRefused) as error:
        return Sighting(variable, library=not isinstance(error, NoLibrary), error=str(error))
    silent = [f"{index}: {why}" for index, why in sorted(inventory.silent.items())]
    return Sighting(variable, [part.uuid for part in inventory.devices], silent)


def _visible(environment: Mapping[str, str]) -> list[str]:
    """The words of the variable: indices, UUIDs, `all`, or VOID; raises ClickException where they name no device.

    Of a CDI name, as in `k8s.device-plugin.nvidia.com/gpu=GPU-…`, it is the device that is behind the kind.
    """
    value = environment.get(vendors.NVIDIA.env)
    if value is not None and value not in ("", "none"):
        return [word.rpartition("=")[2] for word in value.split(",")]
    for vendor in vendors.VENDORS:
        if vendor is not vendors.NVIDIA and (others := environment.get(vendor.env)):
            raise click.ClickException(f"This pod has {vendor.env}={others}; smi knows {vendors.NVIDIA.label}s only.")
    if value is None:
        asks = f"asks for a part of a device by the limit {GPU_MEM}, when it is created."
        joins = f"A pod joins a group by the annotation {contract.GROUP}, or {asks}"
        raise click.ClickException(f"This pod has no device: {vendors.NVIDIA.env} is not set. {joins}")
    raise click.ClickException(_no_device(value or "empty"))


def _no_device(value: str) -> str:
    see = f"see what it was given, in its annotations {contract.PREFIX}…: kubectl describe pod"
    return f"This pod has no device: {vendors.NVIDIA.env} is {value}. Where it names a group or asks for a share, {see}"


def _mine(uses: list[DeviceUse], words: list[str]) -> list[DeviceUse]:
    if words in ([ALL], [VOID]):
        return uses
    if all(word.isdecimal() for word in words):
        # NVML renumbers the GPUs that the runtime shows; only if it shows more than the pod has are these node numbers.
        return uses if len(uses) <= len(words) else [use for use in uses if str(use.index) in words]
    return [use for use in uses if use.uuid in words]


def _view(use: DeviceUse, part: Part | None) -> PodDeviceView:
    resource, model = (part.resource, part.model) if part else ("", "")
    measured = use.memory_used_mib, use.memory_total_mib, use.utilization
    processes = [DeviceProcess(each.pid, _name(each.pid), each.memory_mib or 0) for each in use.processes]
    return PodDeviceView(resource, use.index, use.uuid, model, *measured, processes=processes)


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""  # the process is of another PID namespace, or has ended
