"""The documentation: pages, the generator of their tables, and the hooks of the site."""
