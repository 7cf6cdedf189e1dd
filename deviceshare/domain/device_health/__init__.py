"""What an agent concludes from what it reads: which devices are healthy, and whose process is whose."""
