"""`python -m manytail demo --spark`: each flight that left New York in 2013 gets the weather of its hour by HTTP.

cli: options, exit status. run: the steps. data: flights and weather. session: Spark for one run. service: the weather
service. enrich: what a user writes, read this first. compare: the usual way beside it. tally: what a run came to, and
whether it adds up. report: the same as one HTML page. Nothing is imported here: --help works without the extra.

local: `python -m manytail demo`, which needs no extra and shares nothing with the rest.
"""
