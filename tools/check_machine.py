"""Checks what `make` needs of a machine: Python 3.11 or newer, with venv and its C headers, and a C compiler.

Run by the interpreter that the environment is made from, so its syntax must also suit older Pythons.
"""

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig

OLDEST = (3, 11)


def complaints():
    if sys.version_info < OLDEST:
        version = "{}.{}".format(*sys.version_info[:2])
        yield f"{sys.executable} is Python {version}, 3.11 or newer is needed; choose another by `make PYTHON=...`"
        return
    if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        yield f"{sys.executable} has no venv or no ensurepip; on Debian: apt-get install python3-venv"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        yield f"the C headers of {sys.executable} are missing; on Debian: apt-get install python3-dev"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if not shutil.which(compiler):
        yield f"there is no C compiler {compiler}; on Debian: apt-get install gcc libc6-dev"


found = list(complaints())
for complaint in found:
    print("manytail cannot be built here: " + complaint, file=sys.stderr)
sys.exit(bool(found))
