"""What a node's agent does with what it sees of the devices: it judges, reports, and tells people."""
