"""How the extension modules were compiled: one build makes all of them, with the same compiler and the same switches
(setup.py)."""

import cython

cdef extern from *:
    """
    #if defined(__clang__)
      #define MT_COMPILER "clang " __clang_version__
    #elif defined(__GNUC__)
      #define MT_COMPILER "gcc " __VERSION__
    #elif defined(_MSC_VER)
      #define MT_COMPILER "MSVC"
    #else
      #define MT_COMPILER "an unknown compiler"
    #endif

    #ifndef __has_feature
      #define __has_feature(name) 0
    #endif
    #if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
      #define MT_SANITIZER "thread"
    #elif defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
      #define MT_SANITIZER "address"
    #else
      #define MT_SANITIZER ""
    #endif

    #ifdef NDEBUG
      #define MT_HAS_ASSERTIONS 0
    #else
      #define MT_HAS_ASSERTIONS 1
    #endif
    #ifdef MT_DELAYS
      #define MT_HAS_DELAYS 1
    #else
      #define MT_HAS_DELAYS 0
    #endif
    #if defined(CYTHON_TRACE_NOGIL) && CYTHON_TRACE_NOGIL
      #define MT_HAS_TRACING 1
    #else
      #define MT_HAS_TRACING 0
    #endif
    """
    const char *MT_COMPILER
    const char *MT_SANITIZER
    const char *PY_VERSION
    bint MT_HAS_ASSERTIONS, MT_HAS_DELAYS, MT_HAS_TRACING


compiler = MT_COMPILER.decode()
headers = PY_VERSION.decode()  # the version of CPython whose headers were used
cython_version = cython.__version__
sanitizer = MT_SANITIZER.decode()  # "thread", "address" or ""
assertions = MT_HAS_ASSERTIONS  # MANYTAIL_DEBUG=1
delays = MT_HAS_DELAYS  # MANYTAIL_DELAYS=1
tracing = MT_HAS_TRACING  # MANYTAIL_COVERAGE=1
