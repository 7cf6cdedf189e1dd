"""Turns: programs that can't run side by side run one after the other. Who has the turn, who is next, and for how long."""
