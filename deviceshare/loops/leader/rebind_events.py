"""The events of rebinds: what was answered, about the group or pod that asked, and what each pod was told."""

import structlog

from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import current
from deviceshare.domain.placement import replacement
from deviceshare.loops.ports import Recorder
from deviceshare.loops.protocol.rebind import Answer
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)


def report_answer(recorder: Recorder, answer: Answer) -> None:
    """Logs and notes the answer to a request."""
    asked, node, verdict = answer.asked, answer.ledger.node, answer.verdict
    holder, subject, share = str(answer.holder), subject_of(asked), isinstance(asked, Pod)
    gone = described(verdict.broken)
    if verdict.obstacle:
        log.warning("Could not rebind", holder=holder, node=node, reason=verdict.obstacle)
        cure = "request it again when one is, or repair one and record it with deviceshare recover"
        cure = "delete and recreate the pod" if share else cure
        recorder.warn(subject, "RebindImpossible", f"it {verdict.obstacle}: {cure}")
    elif not verdict.replacements:
        recorder.note(subject, "RebindNotNeeded", f"its devices on node {node} are healthy; it keeps them")
    else:
        log.info("Rebound", holder=holder, node=node, replaced=gone, by=described(verdict.replacements))
        recorder.note(subject, "Rebound", f"{_now(answer)}; {_until(answer)}")


def _now(answer: Answer) -> str:
    node, verdict = answer.ledger.node, answer.verdict
    if isinstance(answer.asked, Pod):
        claim = verdict.claims[answer.holder.uid]
        return f"now has {parts_text(current(claim.shares))} on node {node}; containers see that when they restart"
    by_cdi = replacement.by_cdi(answer.ledger, verdict.devices)
    when = "pods see that when they are recreated" if by_cdi else "containers see that when they restart"
    shares = len(verdict.claims)
    moved = f", with the shares of {shares} pod{'s' * (shares > 1)}" if shares else ""
    return f"now holds {described(verdict.devices)} on node {node}{moved}; {when}"


def _until(answer: Answer) -> str:
    gone = described(answer.verdict.broken)
    if isinstance(answer.asked, Pod):
        return f"what it had of {gone} stays reserved until it has ended"
    return f"{gone} stays reserved until the pods that had it have ended"


def report_update(recorder: Recorder, pod: Pod, claim: Claim) -> None:
    """Logs and notes what a pod was told of the claim, unless it has the same devices in another notation."""
    former = tuple(claim.replaced) if claim.pod else pod.former
    if not former:
        return
    meta, whose = pod.metadata, "it" if claim.pod else "its group"
    now = parts_text(current(pod.shares)) if claim.pod else described(pod.devices)
    log.info("Updated pod with replaced devices", pod=meta.key, devices=now, sealed=pod.sealed)
    if pod.sealed:
        message = (
            f"{whose} no longer holds {described(former)}; its containers keep that, also when they restart, since"
            f" devices are injected by CDI: recreate the pod (kubectl delete pod -n {meta.namespace} {meta.name})"
        )
    else:
        message = (
            f"its containers see {now} when they restart, and may hold {described(former)} until then: restart them,"
            " or delete the pod"
        )
    recorder.warn(subject_of(pod), "DevicesReplaced", message)
