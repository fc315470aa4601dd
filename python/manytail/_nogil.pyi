"""Nothing in here is for Python: `cimport manytail` finds the C functions of _nogil.pxd by this."""

from typing import Any

__pyx_capi__: dict[str, Any]
