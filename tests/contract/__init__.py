"""Suites that hold for every class: one adapter for each structure, and what is asked of all of them."""
