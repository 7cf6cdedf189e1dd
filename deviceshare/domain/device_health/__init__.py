"""An agent's judgement of its readings: which devices are healthy, and which pods their processes belong to."""
