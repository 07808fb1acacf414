/* A slab: blocks that requests use, what is refused, and two threads that take and return at once. */
#include "program.h"
#include <pthread.h>

enum { SMALL = 4, LARGE = 2, ROUNDS = 20000 };

static const bw_slab_class classes[] = {{64, SMALL}, {4096, LARGE}};
static bw_region *region;
static bw_slab *slab;

static char *bytes_of(const bw_block *block)
{
    return (char *)(uintptr_t)block->addr;
}

static uint64_t outstanding(void)
{
    bw_slab_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_slab_query(slab, &info));
    EXPECT(info.blocks == SMALL + LARGE && info.outstanding <= info.blocks);
    return info.outstanding;
}

static void refused(const bw_slab_class *layout, uint32_t num, const char *why)
{
    bw_slab *none = slab;

    EXPECT(bw_slab_create(region, layout, num, &none) == BW_EINVAL && none == NULL);
    EXPECT(strstr(bw_last_error(), why) != NULL);
}

/* Cuts the region, which what cannot be leaves as it was. */
static void cut(bw_pd *pd)
{
    const bw_slab_class odd = {100, 1}, empty = {64, 0}, down[] = {{128, 1}, {64, 1}};
    const bw_slab_class many = {64, 4 * SMALL + 4096}, endless = {UINT32_MAX, UINT32_MAX};
    const bw_slab_class beyond[] = {endless, endless};
    bw_region_attr attr;
    bw_slab *second = NULL;
    uint64_t bytes = 1;

    OK(bw_slab_bytes(NULL, 0, &bytes));
    EXPECT(bytes == 0);
    EXPECT(bw_slab_bytes(beyond, 2, &bytes) == BW_EINVAL);
    OK(bw_slab_bytes(classes, 2, &bytes));
    /* The large ones start at a page. */
    EXPECT(bytes == 4096 + LARGE * 4096);
    OK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = bytes;
    OK(bw_region_create(pd, &attr, &region));

    refused(NULL, 0, "at least one class");
    refused(&odd, 1, "a class of 1 blocks of 100 bytes");
    refused(&empty, 1, "a class of 0 blocks");
    refused(down, 2, "from the smallest");
    refused(&many, 1, "blocks");
    refused(&endless, 1, "blocks");
    OK(bw_slab_create(region, classes, 2, &slab));
    EXPECT(bw_slab_create(region, classes, 2, &second) == BW_EBUSY && second == NULL);
    EXPECT(bw_region_destroy(region) == BW_EBUSY);
    EXPECT(outstanding() == 0);
}

/* A WRITE out of one block, and a receive into another. */
static void used_by_requests(bw_device *device, bw_pd *pd)
{
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    bw_region_info memory;
    bw_block from, to;
    bw_sge sge, place;

    end_connect(&a, &b);
    end_connect(&b, &a);
    memset(&memory, 0, sizeof memory);
    memory.size = sizeof memory;
    OK(bw_region_query(region, &memory));
    OK(bw_slab_take(slab, 1000, &from));
    OK(bw_slab_take(slab, 0, &to));
    EXPECT(from.length == 4096 && (from.addr & 4095) == 0 && from.lkey == memory.lkey);
    EXPECT(to.length == 64 && (to.addr & 63) == 0 && to.lkey == memory.lkey);
    EXPECT(from.addr >= memory.addr && from.addr + 4096 <= memory.addr + memory.length);
    memcpy(bytes_of(&from), "out of a block", 15);
    sge.addr = from.addr;
    sge.length = 15;
    sge.lkey = from.lkey;
    OK(bw_post_write(a.qp, 1, &sge, b.memory.addr, b.memory.rkey, BW_SEND_SIGNALED));
    OK(bw_ring_sq(a.qp));
    expect_wc(&a, 1, BW_WC_SUCCESS);
    OK(bw_slab_return(slab, &from));
    EXPECT(strcmp(end_bytes(&b, 0), "out of a block") == 0);

    sge = end_sge(&b, 0, 15);
    place.addr = to.addr;
    place.length = to.length;
    place.lkey = to.lkey;
    OK(bw_post_recv_one(a.qp, 2, &place));
    OK(bw_ring_rq(a.qp));
    OK(bw_post_send_one(b.qp, 3, &sge, BW_SEND_SIGNALED));
    OK(bw_ring_sq(b.qp));
    expect_wc(&b, 3, BW_WC_SUCCESS);
    expect_wc(&a, 2, BW_WC_SUCCESS);
    EXPECT(strcmp(bytes_of(&to), "out of a block") == 0);
    OK(bw_slab_return(slab, &to));
    end_destroy(&a);
    end_destroy(&b);
}

static void exhausted(void)
{
    bw_block small[SMALL], large[LARGE], none;

    for (int i = 0; i < LARGE; i++)
        OK(bw_slab_take(slab, 65, &large[i]));
    for (int i = 0; i < SMALL; i++) {
        OK(bw_slab_take(slab, 64, &small[i]));
        memset(bytes_of(&small[i]), i, 64);
    }
    memset(&none, 0x5a, sizeof none);
    const bw_block as_it_was = none;
    EXPECT(bw_slab_take(slab, 1, &none) == BW_ENOBLOCK);
    EXPECT(bw_slab_take(slab, 4096, &none) == BW_ENOBLOCK);
    EXPECT(bw_slab_take(slab, 4097, &none) == BW_EINVAL);
    EXPECT(memcmp(&none, &as_it_was, sizeof none) == 0);
    /* Out, each once, and the slab cannot go. */
    for (int i = 0; i < SMALL; i++)
        for (int at = 0; at < 64; at++)
            EXPECT(bytes_of(&small[i])[at] == i);
    EXPECT(outstanding() == SMALL + LARGE);
    EXPECT(bw_slab_destroy(slab) == BW_EBUSY);
    EXPECT(strstr(bw_last_error(), "6 blocks") != NULL);
    /* What is returned is what is taken next. */
    OK(bw_slab_return(slab, &small[2]));
    OK(bw_slab_take(slab, 64, &none));
    EXPECT(memcmp(&none, &small[2], sizeof none) == 0);
    for (int i = 0; i < SMALL; i++)
        OK(bw_slab_return(slab, &small[i]));
    for (int i = 0; i < LARGE; i++)
        OK(bw_slab_return(slab, &large[i]));
    EXPECT(outstanding() == 0);
}

static void returned_wrongly(bw_pd *pd)
{
    const bw_slab_class one = {64, 1};
    bw_region_attr attr;
    bw_region *other_region;
    bw_slab *other;
    bw_block block, foreign, within;
    bw_region_info memory;

    OK(bw_region_attr_default(&attr, sizeof attr));
    attr.length = 64;
    OK(bw_region_create(pd, &attr, &other_region));
    OK(bw_slab_create(other_region, &one, 1, &other));
    OK(bw_slab_take(other, 64, &foreign));
    OK(bw_slab_take(slab, 64, &block));
    EXPECT(bw_slab_return(slab, &foreign) == BW_EFOREIGN);
    EXPECT(bw_slab_return(other, &block) == BW_EFOREIGN);
    within = block;
    within.addr += 8;
    EXPECT(bw_slab_return(slab, &within) == BW_EINVAL);
    /* Between the classes, before and after all of them. */
    memset(&memory, 0, sizeof memory);
    memory.size = sizeof memory;
    OK(bw_region_query(region, &memory));
    within.addr = memory.addr + SMALL * 64;
    EXPECT(bw_slab_return(slab, &within) == BW_EFOREIGN);
    within.addr = memory.addr - 64;
    EXPECT(bw_slab_return(slab, &within) == BW_EFOREIGN);
    within.addr = memory.addr + 4096 + LARGE * 4096;
    EXPECT(bw_slab_return(slab, &within) == BW_EFOREIGN);
    within.addr = UINT64_MAX;
    EXPECT(bw_slab_return(slab, &within) == BW_EFOREIGN);
    /* One that was never out, and one twice. */
    within.addr = memory.addr + 4096;
    EXPECT(bw_slab_return(slab, &within) == BW_ERETURNED);
    EXPECT(outstanding() == 1);
    OK(bw_slab_return(slab, &block));
    EXPECT(bw_slab_return(slab, &block) == BW_ERETURNED);
    EXPECT(outstanding() == 0);
    OK(bw_slab_return(other, &foreign));
    OK(bw_slab_destroy(other));
    OK(bw_region_destroy(other_region));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bw_block between;

/* Takes, marks, and gives the block away for one that the other thread took, which it returns. */
static void *take_and_return(void *mark)
{
    for (int i = 0; i < ROUNDS; i++) {
        bw_block mine, got;

        if (bw_slab_take(slab, 64, &mine) == BW_ENOBLOCK)
            continue;
        memset(bytes_of(&mine), *(const char *)mark, 64);
        for (int at = 0; at < 64; at++)
            EXPECT(bytes_of(&mine)[at] == *(const char *)mark);
        EXPECT(pthread_mutex_lock(&lock) == 0);
        got = between;
        between = mine;
        EXPECT(pthread_mutex_unlock(&lock) == 0);
        OK(bw_slab_return(slab, &got));
    }
    return NULL;
}

static void by_two_threads(void)
{
    char marks[2] = {1, 2};
    pthread_t threads[2];

    OK(bw_slab_take(slab, 64, &between));
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, take_and_return, &marks[i]) == 0);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    EXPECT(outstanding() == 1);
    OK(bw_slab_return(slab, &between));
    EXPECT(outstanding() == 0);
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;

    OK(bw_pd_create(device, &pd));
    cut(pd);
    used_by_requests(device, pd);
    exhausted();
    returned_wrongly(pd);
    by_two_threads();
    OK(bw_slab_destroy(slab));
    /* Cut again, in another way. */
    OK(bw_slab_create(region, &classes[1], 1, &slab));
    OK(bw_slab_destroy(slab));
    OK(bw_region_destroy(region));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
