"""The Helm chart, and the generator of its derived files: `python -m charts.generate`."""
