"""The scheduler of maps under a virtual clock, in worlds drawn from seeds. README.md explains it."""
