"""All stories by name, and what is to be known of them."""

from tests.faults.rare_stories import RARE
from tests.faults.stories import COMMON, Story

STORIES: dict[str, Story] = {**COMMON, **RARE}
EDITING = frozenset(
    {
        *("lost-node", "recreated-node", "lost-ledger", "wiped-status", "edited-ledger", "marked-claim"),
        *("closed-ledger", "deleted-claim", "wiped-under-a-mark", "impostor", "loser"),
    }
)
"""In which people take evidence away by hand, so that a live pod may be without a claim for a while."""
SLOW = frozenset({"ended", "loser", "former", "emptied-secret"})
"""Which wait for more than ten seconds, or have others wait for a new certificate; in the long mode only."""
