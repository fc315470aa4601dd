"""On an interpreter built without the GIL: our modules do not bring it back."""

import os
import sys
import sysconfig

import pytest
from support.process import run_command


@pytest.mark.thread_unsafe(reason="an interpreter of its own; one is enough")
@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter always has its GIL")
def test_importing_manytail_leaves_the_gil_off():
    """CPython enables the GIL, with a warning, for a module that does not declare that it can do without. PYTHON_GIL
    would hide that, so it is unset."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    script = "import sys, pkgutil, importlib, manytail\n" + (
        "for module in pkgutil.iter_modules(manytail.__path__):\n"
        "    if module.name.startswith('_') and module.name != '__main__':\n"
        "        importlib.import_module('manytail.' + module.name)\n"
        "print(sys._is_gil_enabled())"
    )
    ran = run_command(sys.executable, "-W", "error", "-c", script, env=environ)
    assert ran.stdout.strip() == "False", ran.stderr
