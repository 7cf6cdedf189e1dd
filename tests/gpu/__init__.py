"""The node agent on NVIDIA's GPUs themselves: real programs in control groups as the kubelet makes them.

    tox run -e gpu

Needs a GPU with its driver, root, and curl. The control plane is the sandbox's; its pods are simulated, so the tests
run each container's program themselves, with the environment that the container would have.
"""
