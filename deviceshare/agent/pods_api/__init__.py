"""What an agent answers the containers of its node's pods: each its own, known by its address."""
