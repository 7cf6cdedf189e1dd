"""`deviceshare resize`: a larger or smaller share for a pod that runs, without a restart.

The command asks for it by an annotation of the pod, and waits for the claim and the agent's limit to follow.
"""

from functools import partial

import click

from deviceshare.cli.cluster import OUTCOME_SECONDS, Target, deleted, poll, retry_on_conflict
from deviceshare.cli.output import say
from deviceshare.cli.parameters import completing, in_namespace, on_cluster, pod_named
from deviceshare.cli.rebind import pod_with_share
from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.share_wishes import sizes_wanted
from deviceshare.domain.objects.shares import INITS, MIB_PER_GIB, current
from deviceshare.domain.placement.resizing import judge, refusal
from deviceshare.loops.kinds import PODS, annotate
from deviceshare.loops.ports import Cluster


@click.command(
    short_help="Make a running pod's share larger or smaller.",
    epilog="""\b
Examples:
  deviceshare resize pod research/embed --gpu-mem 12     12 GiB of each of its devices
  deviceshare resize pod web --gpu-percent 50 -c server  half of each device, of the container server
  kubectl annotate pod web deviceshare.io/resize=server=12288Mi --overwrite

\b
Exit codes: 0 resized; 1 failed, there is no room yet, or more is in use than asked for; 2 wrong flags.""",
)
@click.argument("what", type=click.Choice(["pod"]), expose_value=False)  # there may be others than pods
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=completing(PODS))
@click.option("--gpu-mem", type=click.IntRange(1, 4095), metavar="GIB", help="GiB of each device.")
@click.option("--gpu-mem-mib", type=click.IntRange(1, 4193280), metavar="MIB", help="MiB of each device.")
@click.option("--gpu-percent", type=click.IntRange(1, 100), metavar="PERCENT", help="Hundredths of each device.")
@click.option("-c", "--container", help="Which container's; needed where several have a share.")
@in_namespace
@on_cluster
def resize(target: Target, name: str, container: str | None, namespace: str | None, **sizes: int | None) -> None:
    """Give a pod's container a larger or smaller part of the devices that it has, without a restart.

    A larger one needs room on the device, and waits for it. A smaller one needs the container to use no more than that,
    where the node enforces limits: it keeps its share until it does. Frameworks see another size at their next start.
    """
    given = [(flag, number) for flag, number in sizes.items() if number]
    if len(given) != 1:
        raise click.UsageError("Give one of --gpu-mem, --gpu-mem-mib and --gpu-percent.")
    [(flag, number)] = given
    mib = number * MIB_PER_GIB if flag == "gpu_mem" else number
    size = f"{number}%" if flag == "gpu_percent" else f"{mib}Mi"
    within, pod = pod_named(name, namespace, target)
    say(target.ask(lambda api: ask(api, within, pod, container, size)))


async def ask(api: Cluster, namespace: str, name: str, container: str | None, size: str) -> str:
    """Requests the size, and returns the outcome as a sentence.

    Raises ApiError, and ClickException where the share has not changed, which says why and what to do.
    """
    look, subject = partial(pod_with_share, api, namespace, name), f"Pod {namespace}/{name}"
    explain = f"deviceshare explain pod {namespace}/{name}"

    async def request() -> str:
        pod, _, claim = await look()
        mine = sorted({share.container for share in current(claim.shares) if share.role not in INITS})
        if not mine:
            raise click.ClickException(f"{subject} has shares in init containers only: recreate it.")
        if container not in mine and (container is not None or len(mine) != 1):
            raise click.UsageError(f"{subject} has shares in {', '.join(mine)}: name one by --container.")
        known = sizes_wanted(pod.metadata.annotations).items()
        wishes = {each: f"{percent}%" if percent else f"{memory}Mi" for each, (memory, percent) in known}
        wish = ",".join(f"{each}={asked}" for each, asked in {**wishes, container or mine[0]: size}.items())
        if not await annotate(api, pod, {contract.RESIZE: wish}):
            raise deleted(subject, explain)
        return pod.metadata.uid

    async def answer() -> str | None:
        pod, ledger, claim = await look(asked)
        told = {share.container: (share.memory_mib, share.percent) for share in current(pod.shares)}
        if sizes_wanted(pod.metadata.annotations).items() <= told.items():
            return f"{subject} now has {parts_text(current(claim.shares))} on node {ledger.node}."
        if obstacle := judge(ledger, pod).obstacle or refusal(ledger, pod):
            withdraw = f"kubectl annotate pod -n {namespace} {name} {contract.RESIZE}-"
            raise click.ClickException(f"{subject} {obstacle}. To withdraw the request: {withdraw}")
        return None

    asked = await retry_on_conflict(request)
    if found := await poll(answer, doing=f"Waiting for the share of {namespace}/{name}"):
        return found
    pod, ledger, _ = await look(asked)
    lowering = judge(ledger, pod).lowering
    state = f"{subject} {lowering}" if lowering else f"deviceshare has not answered within {OUTCOME_SECONDS:g} s"
    raise click.ClickException(f"{state}. The request stays: see what becomes of it with {explain}")
