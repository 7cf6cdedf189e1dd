"""Within which bounds something breaks without each rule of the model."""

from typing import Final

from tests.model.rules import Rule

NEEDED: dict[Rule, tuple[str, bool]] = {
    Rule.BIND_2_FRESH: ("bind and collect, two binds at once", True),
    Rule.BIND_2_CLAIM: ("bind and collect, two binds at once", True),
    Rule.BIND_2_MARK: ("bind and collect, two binds at once", True),
    Rule.BIND_2_TOKEN: ("release, two groups on a node", True),
    Rule.BIND_3_FRESH: ("release, two leaders", True),
    Rule.BIND_3_CAS: ("bind, two groups at once", True),
    Rule.BIND_3_MARK: ("bind and collect, two leaders", True),
    Rule.BIND_4_CAS: ("bind and collect, two leaders", True),
    Rule.BIND_4_LOSER: ("bind and collect, two binds at once", True),
    Rule.BIND_5_VERSION: ("bind and collect, two leaders", True),
    Rule.BIND_5_AGAIN: ("bind and collect, two leaders", True),
    Rule.COLLECT_1_MARK: ("bind and collect, two leaders", True),
    Rule.COLLECT_2_FENCE: ("bind and collect, two leaders", True),
    Rule.COLLECT_2_READ: ("bind and collect, two leaders", True),
    Rule.COLLECT_3_LIST: ("bind and collect, two leaders", True),
    Rule.COLLECT_3_WAIT: ("bind and collect, two leaders", True),
    Rule.COLLECT_3_AGAIN: ("bind and collect, two leaders", False),
    Rule.COLLECT_4_CAS: ("bind and collect, two leaders", True),
    Rule.RELEASE_1_MARK: ("release, two leaders", True),
    Rule.RELEASE_2_WAIT: ("release, two leaders", True),
    Rule.RELEASE_3_READ: ("release, two leaders", True),
    Rule.RELEASE_3_LIST: ("release, two leaders", True),
    Rule.RELEASE_3_MARK: ("release, two leaders", True),
    Rule.UNMARK_FENCE: ("release, two leaders", True),
    Rule.RELEASE_4_CAS: ("release, two leaders", True),
    Rule.RELEASE_5_LAST: ("release, two leaders", True),
    Rule.RELEASE_5_CAS: ("release, two leaders", True),
    Rule.RETIRE_CAS: ("retire, two leaders", True),
    Rule.OPEN_WAIT: ("a ledger is lost, two leaders", True),
    Rule.REPAIR_MARK: ("a ledger is lost, two leaders", True),
    Rule.REPAIR_CAS: ("a ledger is lost, two leaders", True),
    Rule.FINALIZE_AS_RELEASE: ("deletion, two leaders", True),
    Rule.SHARE_MARK: ("shares, two leaders", True),
    Rule.SHARE_CAS: ("shares, two pods on two nodes", True),
}
"""The bounds of `bounds.SMALL`, and whether the server compares versions."""
NEEDED_BY_SHARES: Final = tuple(
    (rule, "shares, two leaders", NEEDED[rule][1])
    for rule in (Rule.COLLECT_1_MARK, Rule.COLLECT_3_WAIT, Rule.COLLECT_3_AGAIN, Rule.COLLECT_4_CAS)
)
"""A claim of a share is released by the same steps as a group's, without a fence: its pod is its holder."""
UNPROVEN: dict[Rule, str] = {}
"""Those without which nothing was seen to break, and why that is so; docs/claims.md says the same."""
