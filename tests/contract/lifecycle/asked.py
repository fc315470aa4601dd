"""The questions that the life cycle suite asks of a class, as a program: `asked.py manytail.EntryQueue`.

It prints a wrong answer as a line "question: what was wrong". A crash ends the process. At the end the process exits
while some objects are unclosed.
"""
import copy
import ctypes
import gc
import inspect
import pickle
import sys
import threading
import traceback
import weakref
from functools import partial
from typing import Any

from samples import SAMPLES, Sample

WAITS = {
    "get",
    "get_many",
    "get_many_into",
    "get_with_key",
    "put",
    "publish",
    "put_front",
    "join",
}
# PyVarObject, with the sizes of CPython 3.11 to 3.15, with the GIL and without.
HEADER = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
SLOT_OF_CLEAR = 21
unraisable: list[type] = []        # types of unraisable exceptions; the exceptions themselves would keep objects alive


def tp_clear(it: Any) -> None:
    """What the collector does to an object of a garbage cycle, in any order with other objects."""
    at = id(type(it)) + HEADER + SLOT_OF_CLEAR * ctypes.sizeof(ctypes.c_void_p)
    function = ctypes.c_void_p.from_address(at).value
    if function:
        ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(function)(it)


def use(it: Any) -> None:
    """Call every method that does not wait, and read every property. They may raise any exception."""
    for name in dir(type(it)):
        if name.startswith("_"):
            continue
        try:
            member = getattr(it, name)
            if not callable(member):
                continue
            if name in WAITS:
                arguments = {
                    "put": (1, False),
                    "publish": (1, False),
                    "put_front": (1, False),
                    "join": (0.0,),
                    "get_many": (1, False),
                }
                member(*arguments.get(name, (False,)))
            elif not inspect.iscoroutinefunction(member) and name not in (
                "aget",
                "aput",
                "ajoin",
                "apublish",
                "aget_many",
                "aget_with_key",
            ):
                member()
        except Exception:
            continue
    describe(it)


def is_python(it: Any) -> bool:
    """Whether its class is written in Python: the collector clears its attributes, and __new__ alone sets none."""
    return hasattr(it, "__dict__") and type(it).__module__ not in ("manytail", "manytail._queue")


def describe(it: Any) -> None:
    try:
        repr(it)
    except AttributeError:
        if not is_python(it):
            raise


def raises(kinds: Any, call: Any) -> str:
    """The message of the exception that `call` raises, which must be of one of these types."""
    try:
        call()
    except kinds as error:
        return str(error)
    raise AssertionError(f"no {kinds}")


# -------------------------------------------------------------------------------------------------------- the questions
def init_again(sample: Sample) -> None:
    it = sample.make()
    # init is None: only its makers pass it arguments.
    kinds = TypeError if sample.init is None and is_python(it) else RuntimeError
    if sample.has_init:
        assert raises(kinds, lambda: it.__init__(*(sample.init or ()), **(sample.options or {})))
    use(it)


def init_again_in_two_threads(sample: Sample) -> None:
    """On an object made by __new__ alone: exactly one thread succeeds."""
    if sample.init is None or not sample.has_init:
        return
    cls = type(sample.make())
    for _ in range(20):
        it, begin, results = cls.__new__(cls), threading.Barrier(2), []

        def init(it: Any = it, begin: Any = begin, results: list[Any] = results) -> None:
            begin.wait()
            try:
                it.__init__(*sample.init, **(sample.options or {}))
                results.append(None)
            except RuntimeError as error:
                results.append(error)

        threads = [threading.Thread(target=init) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(result is None for result in results) == 1, results


def made_by_new_alone(sample: Sample) -> None:
    made = sample.make()
    cls = type(made)
    if sample.init is None and cls.__new__ is not object.__new__:
        assert "make" in raises(TypeError, lambda: cls.__new__(cls))
        return
    it = cls.__new__(cls)
    use(it)
    ring = [it]
    ring.append(ring)
    tp_clear(it)


def used_after_close(sample: Sample) -> None:
    it = sample.make()
    for name in [sample.close, "shutdown"]:
        if name and hasattr(it, name):
            for _ in range(3):
                getattr(it, name)()
            use(it)


def weakly_referenced(sample: Sample) -> None:
    it = sample.make()
    gone = weakref.ref(it)
    assert gone() is it
    end(sample, it)
    del it
    gc.collect()
    assert gone() is None


def not_copied(sample: Sample) -> None:
    it = sample.make()
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        message = raises(TypeError, lambda call=call: call(it))
        assert type(it).__name__ in message, message
        assert "instead" in message or "make it" in message or "ask " in message, message
    for iterator in iterators(it):
        raises(TypeError, lambda iterator=iterator: pickle.dumps(iterator))


def end(sample: Sample, it: Any, cls: Any = None) -> None:
    """Close what other objects keep until it is closed."""
    if sample.lives:
        try:
            getattr(cls or type(it), sample.lives)(it)
        except sample.ended:
            return


def iterators(it: Any) -> list[Any]:
    made = [getattr(it, name)() for name in ("__iter__", "browse") if hasattr(it, name)]
    return [iterator for iterator in made if iterator is not it]


def collected_in_a_cycle(sample: Sample) -> None:
    for _ in range(3):
        it = sample.make()
        ring: list[Any] = [it]
        ring.append(ring)
        if sample.put:
            sample.put(it, ring)
        gone = weakref.ref(it)
        use(it) if not sample.put else repr(it)
        end(sample, it)
        del it, ring
        gc.collect()
        gc.collect()
        assert gone() is None


def collected_half_iterated(sample: Sample) -> None:
    for taken in (0, 1, 4):     # none, some, all and the end
        it = sample.make()
        for item in range(3):
            if sample.put:
                sample.put(it, item)
        made = iterators(it) if sample.put else []
        for iterator in made:
            for _ in range(taken):
                next(iterator, None)
        ring: list[Any] = [it, made]
        ring.append(ring)
        if sample.put:
            sample.put(it, ring)
        gone = weakref.ref(it)
        end(sample, it)
        del it, made, ring
        iterator = None
        gc.collect()
        gc.collect()
        assert gone() is None


def cleared_in_any_order(sample: Sample) -> None:
    it = sample.make()
    if sample.put:
        sample.put(it, [it])
    made = iterators(it) if sample.put or hasattr(it, "browse") else []
    for one in [it, *made]:
        tp_clear(one)
        describe(one)
    for iterator in made:
        next(iterator, None)
    use(it)
    tp_clear(it)
    del one, made, it
    gc.collect()


def exhausted_stays_exhausted(sample: Sample) -> None:
    if not sample.put:
        return
    it = sample.make()
    sample.put(it, 1)
    for iterator in iterators(it):
        list(iterator)
        sample.put(it, 2)
        assert list(iterator) == []


def subclassed_with_hostile_overrides(sample: Sample) -> None:
    cls = type(sample.make())
    if not sample.base:
        return

    def hostile(*_: Any, **__: Any) -> Any:
        raise ArithmeticError

    names = [
        "__eq__",
        "__hash__",
        "__len__",
        "__bool__",
        "__del__",
        "qsize",
        "depth",
        "empty",
        "shutdown",
        "is_shutdown",
        "close",
        "stats",
        "name",
    ]
    made = type("Hostile", (cls,), dict.fromkeys(names, hostile))
    it = made(*(sample.init or ()), **(sample.options or {}))
    repr(it)
    if hasattr(it, "add"):
        it.add("k")
    if sample.put:
        for item in range(3):
            sample.put(it, item)
    use(it)
    gone = weakref.ref(it)
    ring: list[Any] = [it]
    ring.append(ring)
    if sample.put:
        sample.put(it, ring)
    end(sample, it, cls)
    del it, ring
    gc.collect()
    gc.collect()
    assert gone() is None
    assert set(unraisable) <= {ArithmeticError, ResourceWarning}, unraisable
    unraisable.clear()


def collected_unclosed(sample: Sample) -> None:
    """Under -W error: it is closed even if its ResourceWarning becomes an error, and the warning comes once."""
    if not sample.close:
        return
    unraisable.clear()
    it = sample.make()
    del it
    gc.collect()
    assert unraisable == [ResourceWarning], unraisable
    unraisable.clear()


def ways_to_own(sample: Sample) -> list[Any]:
    """Functions that make an object of the class, or of a subclass of it, that refers to an item."""
    ways = list(sample.owns)
    if sample.put:
        made = [sample.make]
        if sample.base:
            derived = type("Derived", (type(sample.make()),), {})
            made.append(lambda: derived(*(sample.init or ()), **(sample.options or {})))
        ways += [lambda item, make=make: owner_by_put(sample, make(), item) for make in made]
    return ways


def owner_by_put(sample: Sample, it: Any, item: Any) -> Any:
    if hasattr(it, "setdefault"):
        it.setdefault("k")
    sample.put(it, item)  # type: ignore[misc]
    return it


def dead_before_what_it_owns(sample: Sample) -> None:
    """The finalizer of an item does not reach its owner: that would revive what is half freed."""
    found: list[Any] = []

    class Item:
        owner: Any = None

        def __del__(self) -> None:
            found.append(self.owner())

    for make in ways_to_own(sample):
        item = Item()
        it = make(item)
        item.owner = weakref.ref(it)
        end(sample, it)
        del item, it
        gc.collect()
        assert found == [None], found
        found.clear()


def kept_attributes(sample: Sample) -> None:
    """Of a built-in type `del` of an attribute is an AttributeError."""
    it = sample.make()
    for name, member in inspect.getmembers(type(it), inspect.isdatadescriptor):
        if not name.startswith("_") and not inspect.ismemberdescriptor(member):  # those of __slots__ go
            raises(AttributeError, partial(delattr, it, name))


QUESTIONS = [
    init_again, init_again_in_two_threads, made_by_new_alone, used_after_close, weakly_referenced, not_copied,
    collected_in_a_cycle, collected_half_iterated, cleared_in_any_order, exhausted_stays_exhausted,
    subclassed_with_hostile_overrides, collected_unclosed, dead_before_what_it_owns,
    kept_attributes,
]  # fmt: skip


def main(names: list[str]) -> None:
    before = sys.unraisablehook
    sys.unraisablehook = lambda event: unraisable.append(event.exc_type)
    left = []
    for name in names:
        sample = SAMPLES[name]
        for question in QUESTIONS:
            try:
                question(sample)
            except Exception:
                print(f"{name}: {question.__name__}: {traceback.format_exc()}")
        left.append(sample.make())
        ring: list[Any] = [sample.make()]
        ring.append(ring)
        left.append(ring)
    gc.collect()
    unraisable.clear()
    sys.unraisablehook = before
    globals()["left_to_the_exit"] = left
    sys.left = [SAMPLES[name].make() for name in names]  # type: ignore[attr-defined] # freed after the modules


if __name__ == "__main__":
    main(sys.argv[1:])
