# Doubly linked lists of structs. Private.
#
# A member has two fields for each list that it may be in: the next member and the previous one, in this order. `links`
# is the address of these two. `first`, and `last` if the list has it (else NULL), are the addresses of its ends. All
# pointers are typed, so whoever walks along a list needs no cast. The caller's lock guards the list.
from libc.stddef cimport ptrdiff_t

ctypedef struct member_links:
    void *next
    void *prev


cdef inline member_links *links_at(void *member, ptrdiff_t offset) noexcept nogil:
    return <member_links *>(<char *>member + offset)


cdef inline void link_after(void *before, void *member, void *links, void *first, void *last) noexcept nogil:
    """Link a member directly after `before`; NULL: as the first one."""
    cdef member_links *own = <member_links *>links
    cdef ptrdiff_t offset = <char *>links - <char *>member
    cdef void **link = <void **>first if before == NULL else &links_at(before, offset).next
    own.prev = before
    own.next = link[0]
    link[0] = member
    if own.next != NULL:
        links_at(own.next, offset).prev = member
    elif last != NULL:
        (<void **>last)[0] = member


cdef inline void link_last(void *member, void *links, void *first, void *last) noexcept nogil:
    link_after((<void **>last)[0], member, links, first, last)


cdef inline void unlink_from(void *member, void *links, void *first, void *last) noexcept nogil:
    cdef member_links *own = <member_links *>links
    cdef ptrdiff_t offset = <char *>links - <char *>member
    if own.prev != NULL:
        links_at(own.prev, offset).next = own.next
    else:
        (<void **>first)[0] = own.next
    if own.next != NULL:
        links_at(own.next, offset).prev = own.prev
    elif last != NULL:
        (<void **>last)[0] = own.prev
