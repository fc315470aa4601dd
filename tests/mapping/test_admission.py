"""The admission where two threads use it: the simulation (tests/simulation) runs one event at a time and cannot show
that."""

from collections import deque
from typing import Any

from manytail.mapping._admission import Admission
from manytail.mapping._item import Item


def test_the_reader_may_assign_a_new_key_while_the_deadline_drains() -> None:
    admission = Admission(per_key=1, keyed=True, prioritised=False, in_order=False)

    class Meanwhile(deque[Any]):
        def clear(self) -> None:
            admission.assign([Item("new", key="another")])
            super().clear()

    items = [Item(number, key="one") for number in range(3)]
    admission.assign(items)
    items[0].lane.waiting = Meanwhile()
    admission.admit(items)
    assert {item.value for item in admission.drain()} == {0, 1, 2}
