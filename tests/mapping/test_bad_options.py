"""Bad options are refused at the call: what, its value, what was expected."""

import re
from typing import Any

import pytest

from manytail import Rate, concurrent_map

RATE = Rate(1)
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"retry": -1}, ValueError, "retry: -1 (expected: an int >= 0, or a Retry)"),
    ({"retry": True}, TypeError, "retry: True of type bool (expected: an int >= 0, or a Retry)"),
    ({"retry": None}, TypeError, "retry: None of type NoneType (expected: an int >= 0, or a Retry)"),
    ({"timeout": 0}, ValueError, "timeout: 0 (expected: seconds, a number > 0)"),
    ({"timeout": -1.5}, ValueError, "timeout: -1.5 (expected: seconds, a number > 0)"),
    ({"workers": 0}, ValueError, "workers: 0 (expected: an int >= 1, or (least, most): two of them, least <= most,"),
    ({"workers": True}, TypeError, "workers: True of type bool (expected: an int >= 1, or (least, most): two of them"),
    ({"workers": "2"}, TypeError, "workers: '2' of type str (expected: an int >= 1, or (least, most): two of them"),
    ({"workers": (0, 4)}, ValueError, "workers: (0, 4) (expected: an int >= 1, or (least, most): two of them, least"),
    ({"workers": (5, 2)}, ValueError, "workers: (5, 2) (expected: an int >= 1, or (least, most): two of them, least"),
    ({"workers": (1,)}, TypeError, "workers: (1,) of type tuple (expected: an int >= 1, or (least, most): two of"),
    ({"workers": ("a", 2)}, TypeError, "workers: ('a', 2) of type tuple (expected: an int >= 1, or (least, most)"),
    ({"workers": (True, 2)}, TypeError, "workers: (True, 2) of type tuple (expected: an int >= 1, or (least, most)"),
    ({"workers": [1, 2]}, TypeError, "workers: [1, 2] of type list (expected: an int >= 1, or (least, most): two"),
    ({"workers": (1, 4), "max_in_flight": 3}, ValueError, "or at least workers, which is 4)"),
    ({"breaker": 0}, ValueError, "breaker: 0 (expected: an int >= 1, or a Breaker)"),
    ({"breaker": True}, TypeError, "breaker: True of type bool (expected: an int >= 1, or a Breaker)"),
    ({"limits": 3}, TypeError, "limits: 3 of type int (expected: a Rate, a Budget, a Concurrency, or a list of them)"),
    ({"limits": [RATE, RATE]}, ValueError, "(expected: each limit once, and different names)"),
    ({"limits": [Rate(1, name="a"), Rate(2, name="a")]}, ValueError, "(expected: each limit once, and different"),
    ({"limits": Rate(2, per_key=True)}, ValueError, "(expected: key is given)"),
    ({"limits": Rate(2, cost="price")}, ValueError, "(expected: a cost that is a function"),
    ({"batch": 0}, ValueError, "batch: 0 (expected: an int >= 1, or a Batch)"),
    (
        {"batch": 10, "workers": 4, "max_in_flight": 39},
        ValueError,
        "(expected: None, which means automatic, or at least workers x batch, which is 40)",
    ),
    ({"max_in_flight": 0}, ValueError, "max_in_flight: 0 (expected: an int >= 1)"),
    ({"per_key": 0, "key": str}, ValueError, "per_key: 0 (expected: an int >= 1)"),
    ({"dedup": 0}, ValueError, "dedup: 0 (expected: an int >= 1)"),
    ({"dedup": 1.5}, TypeError, "dedup: 1.5 of type float (expected: an int >= 1)"),
    ({"max_failures": -1, "errors": "drop"}, ValueError, "max_failures: -1 (expected: "),
    ({"max_failures": True, "errors": "drop"}, TypeError, "max_failures: True of type bool (expected: "),
    ({"max_failures": 1}, ValueError, "max_failures: 1 (expected: "),
    ({"fatal": 1}, TypeError, "fatal: 1 of type int (expected: "),
    ({"fatal": (int,)}, TypeError, "fatal: (<class 'int'>,) of type tuple (expected: "),
    ({"item_id": "id"}, TypeError, "item_id: 'id' of type str (expected: a callable that takes one argument)"),
]


@pytest.mark.parametrize(("options", "kind", "message"), BAD, ids=[message for _, _, message in BAD])
def test_a_bad_option_is_refused_before_an_item_is_taken(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    taken: list[int] = []
    with pytest.raises(kind, match=re.escape(message)):
        concurrent_map(str, map(taken.append, range(3)), **options)
    assert taken == []
