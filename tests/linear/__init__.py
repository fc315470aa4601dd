"""Linearizability: histories of real threads, and checkers that say whether a sequential run explains them."""
