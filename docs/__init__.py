"""The documentation: pages, what generates parts of them, and what makes a site of them."""
