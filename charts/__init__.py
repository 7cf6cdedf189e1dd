"""The Helm chart, and what keeps its generated files in step with their sources: `python -m charts.generate`."""
