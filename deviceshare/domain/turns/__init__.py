"""Turns of programs that can't run side by side: who has the turn, who is next, and when a lost one is over."""
