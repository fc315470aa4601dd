"""`python -m manytail demo`: an API with a quota, a pool that loses results, a map that does not, a run that is killed.

Needs the standard library alone. job: what a user writes, read this first. api: the API, a process of its own.
claims: what must hold, told from the API's log. svg, page: the curves, and the page that shows them. cli: the steps.
"""
