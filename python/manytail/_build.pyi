"""Types of what was compiled in."""

compiler: str
headers: str
cython_version: str
sanitizer: str
assertions: bool
delays: bool
tracing: bool
