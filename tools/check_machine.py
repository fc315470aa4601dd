"""What `make` needs of a machine, checked before anything is made: a Python that is new enough, with venv and its C headers, and a C compiler.

Run by the interpreter that the environment is going to be made from, so it keeps to syntax that older ones still read.
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
        yield "Python {}.{} or newer is needed, {} is {}.{}; choose another by `make PYTHON=...`".format(*OLDEST, sys.executable, *sys.version_info[:2])
        return
    if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        yield "{} has no venv or no ensurepip; on Debian: apt-get install python3-venv".format(sys.executable)
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        yield "the C headers of {} are missing; on Debian: apt-get install python3-dev".format(sys.executable)
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if not shutil.which(compiler):
        yield "there is no C compiler {}; on Debian: apt-get install gcc libc6-dev".format(compiler)


found = list(complaints())
for complaint in found:
    print("manytail cannot be built here: " + complaint, file=sys.stderr)
sys.exit(bool(found))
