"""The engine of maps: decides what a map does next. Pure: no thread, clock, lock, I/O or randomness."""
