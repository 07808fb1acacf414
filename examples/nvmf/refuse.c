/*
 * An allocator that refuses: linked to the target, it makes nvmf-target-refuse, of which check.sh refuses each allocation
 * once. The environment has the number of the allocation (REFUSE_AT, from 0), and whether all behind it are refused,
 * too (REFUSE_AFTER). With glibc.
 *
 * All that the target itself allocates counts. Of other allocations, by libbellwire and the C library, those of 2 KiB
 * and more count: smaller ones end the process (docs/bounds.md).
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL = 2048 };

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t align, size_t size);

/* Of the linker: where the program's own code begins and ends. */
extern const char __executable_start, etext;

static atomic_long left = -1;
static bool after;

__attribute__((constructor)) static void read_environment(void)
{
    const char *at = getenv("REFUSE_AT");

    after = getenv("REFUSE_AFTER") != NULL;
    if (at != NULL)
        left = atol(at);
}

/* Without an allocation of its own. */
static void say(size_t size, bool ours)
{
    char text[96];
    int length = snprintf(text, sizeof text, "refused: %zu bytes of %s\n", size, ours ? "the target" : "its libraries");
    ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    (void)written;
}

static bool refuses(size_t size, const void *caller)
{
    bool ours = (const char *)caller >= &__executable_start && (const char *)caller < &etext;
    long before = left;

    if (before < 0 || (!ours && size < SMALL))
        return false;
    while (before >= 0 && !atomic_compare_exchange_weak(&left, &before, before == 0 && after ? 0 : before - 1))
        ;
    if (before != 0)
        return false;
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        say(size, ours);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size)
{
    return refuses(size, __builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    size_t all = size != 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size;

    return refuses(all, __builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    return refuses(size, __builtin_return_address(0)) ? NULL : __libc_realloc(memory, size);
}

void *memalign(size_t align, size_t size)
{
    return refuses(size, __builtin_return_address(0)) ? NULL : __libc_memalign(align, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return refuses(size, __builtin_return_address(0)) ? NULL : __libc_memalign(align, size);
}

int posix_memalign(void **memory, size_t align, size_t size)
{
    void *made = refuses(size, __builtin_return_address(0)) ? NULL : __libc_memalign(align, size);

    if (made == NULL)
        return ENOMEM;
    *memory = made;
    return 0;
}
