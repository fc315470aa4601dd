"""Linearizability: histories recorded from real threads, and checkers that say whether any sequential run explains them."""
