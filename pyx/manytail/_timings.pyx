"""How long the calls of one worker took, and how long their items waited: counts of durations, in constant memory.

A duration falls into one of 16 buckets between two powers of two, in nanoseconds; what is told is the bucket's middle,
at most 3 % off. The largest duration is kept as it is. One thread writes, any thread may read: it sees counts of
slightly different moments. No user code runs here.
"""
cimport cython
from libc.math cimport frexp
from libc.stdint cimport int64_t
from libc.string cimport memset

from manytail._c cimport mt_now_ns

cdef enum:
    STEPS = 16
    FIRST = 5  # frexp's exponent of STEPS
    BUCKETS = 60 * STEPS  # up to 2**63 ns

cdef struct Histogram:
    int64_t largest
    int64_t counts[BUCKETS]


cdef inline void add(Histogram *histogram, int64_t duration) noexcept nogil:
    cdef int exponent = 0
    if duration < 0:
        duration = 0
    if duration > histogram.largest:
        histogram.largest = duration
    if duration < STEPS:
        histogram.counts[duration] += 1
        return
    cdef double mantissa = frexp(<double>duration, &exponent)  # in [0.5, 1)
    histogram.counts[(exponent - FIRST + 1) * STEPS + <int>((2 * mantissa - 1) * STEPS)] += 1


cdef double middle(int bucket) noexcept nogil:
    """Nanoseconds."""
    if bucket < STEPS:
        return bucket
    cdef int64_t width = (<int64_t>1) << (bucket // STEPS - 1)
    return (STEPS + bucket % STEPS + 0.5) * width


def now() -> float:
    """The time of all Timings, in seconds."""
    return mt_now_ns() / 1e9


cdef inline int64_t ns(double seconds) noexcept nogil:
    return <int64_t>(seconds * 1e9)


cdef double at_rank(const int64_t *counts, double rank) noexcept nogil:
    """The duration that so many are not longer than, in nanoseconds."""
    cdef int64_t seen = 0
    cdef int bucket
    for bucket in range(BUCKETS):
        seen += counts[bucket]
        if seen and seen >= rank:
            return middle(bucket)
    return 0.0


cdef tuple quantiles_of(Histogram *histogram):
    cdef int64_t total = 0
    cdef double largest = histogram.largest
    cdef int bucket
    for bucket in range(BUCKETS):
        total += histogram.counts[bucket]
    found = [min(at_rank(histogram.counts, share * total), largest) / 1e9 for share in (0.5, 0.95, 0.99)]
    return (*found, largest / 1e9)


cdef void merge(Histogram *into, const Histogram *other) noexcept nogil:
    cdef int bucket
    into.largest = max(into.largest, other.largest)
    for bucket in range(BUCKETS):
        into.counts[bucket] += other.counts[bucket]


@cython.final
cdef class Timings:
    """The calls of one worker, or of several that have ended.

    `begin` and `end` are for a worker that makes one call at a time. One that makes several keeps the time of each
    start itself."""

    cdef Histogram ran, waited
    cdef int64_t began

    def __cinit__(self):
        memset(&self.ran, 0, sizeof(Histogram))
        memset(&self.waited, 0, sizeof(Histogram))
        self.began = 0

    def begin(self) -> None:
        """A call begins."""
        self.began = mt_now_ns()

    def end(self, read: float) -> None:
        """It has ended, and was the last one of an item that was read at that time."""
        with cython.critical_section(self):
            add(&self.ran, mt_now_ns() - self.began)
            add(&self.waited, self.began - ns(read))

    def end_attempt(self) -> float:
        """It has ended, and may be called again. Returns when it began."""
        with cython.critical_section(self):
            add(&self.ran, mt_now_ns() - self.began)
        return self.began / 1e9

    def ended(self, begun: float) -> None:
        """A call has ended that began at that time."""
        with cython.critical_section(self):
            add(&self.ran, mt_now_ns() - ns(begun))

    def last_began(self, begun: float, read: float) -> None:
        """The last call of an item began then; the item was read at the second time."""
        with cython.critical_section(self):
            add(&self.waited, ns(begun - read))

    def __add__(self, Timings other) -> Timings:
        cdef Timings both = Timings()
        for one in (self, other):
            with cython.critical_section(one):
                merge(&both.ran, &(<Timings>one).ran)
                merge(&both.waited, &(<Timings>one).waited)
        return both

    @property
    def calls(self) -> int:
        """How many calls have ended."""
        cdef int64_t total = 0
        cdef int bucket
        with cython.critical_section(self):
            for bucket in range(BUCKETS):
                total += self.ran.counts[bucket]
        return total

    def quantiles(self) -> tuple:
        """Of the waits and of the calls: the 50th, 95th and 99th percentile and the largest, in seconds."""
        with cython.critical_section(self):
            found = quantiles_of(&self.waited), quantiles_of(&self.ran)
        return found
