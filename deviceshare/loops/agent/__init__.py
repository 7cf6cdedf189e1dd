"""The node agent's work: look at devices and processes, judge, report, evict intruders."""
