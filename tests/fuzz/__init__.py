"""Fuzzers: random maps and random calls of the queues, run for real."""
