"""A third-party package, built as its author would: against whatever manytail is installed beside Cython."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import manytail

setup(
    name="thirdparty",
    ext_modules=cythonize([Extension("thirdparty", ["thirdparty.pyx"], include_dirs=[manytail.get_include()])]),
)
