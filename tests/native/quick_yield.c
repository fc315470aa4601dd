/* Preloaded into free-threaded interpreters that run tests: CPython's calls of sched_yield return at once.

CPython 3.13 takes the lock of all types again, in the same thread, whenever it makes a class whose metaclass is not
`type`. Before it notices it yields forty times. On a machine with other work each yield costs a turn of everybody, and
Linux takes it from the share of who yields: an import of SQLAlchemy takes ten times as long. A yield is a hint, so what
is tested stays the same. Calls of sched_yield from anywhere else, ours among them, are made. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where CPython's code is, in the interpreter or its library. Empty in other programs. */
static uintptr_t code_begin, code_end;

static int find_code(struct dl_phdr_info *object, size_t size, void *inside) {
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        uintptr_t begin = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        uintptr_t end = begin + object->dlpi_phdr[i].p_memsz;
        if (object->dlpi_phdr[i].p_type == PT_LOAD && begin <= (uintptr_t)inside && (uintptr_t)inside < end) {
            code_begin = begin;
            code_end = end;
            return 1;
        }
    }
    return 0;
}

__attribute__((constructor)) static void find_cpython(void) {
    void *inside = dlsym(RTLD_DEFAULT, "PyMutex_Lock");
    if (inside) dl_iterate_phdr(find_code, inside);
}

int sched_yield(void) {
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (code_begin <= caller && caller < code_end) return 0;
    return (int)syscall(SYS_sched_yield);
}
