"""NVML without GPUs, for tests: a C library that pynvml loads as it loads NVIDIA's, answering from a script.

library = build(directory)
script = Script(directory / "script")
first, second = script.gpus(2, nvlink_pairs=True)
process = Popen(["deviceshare", "agent", …], env=os.environ | script.environment(library))
script.xid(first, 79)
script.lose(second)
"""

from deviceshare_sandbox.nvml.library import VARIABLE, build, load
from deviceshare_sandbox.nvml.script import Script

__all__ = ["VARIABLE", "Script", "build", "load"]
