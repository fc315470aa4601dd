"""Carry out what the engine decided: one driver for threads, one for a loop, one inline."""
