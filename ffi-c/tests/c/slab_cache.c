/* Caches of a slab: blocks that go from one to another, what is refused, and two threads with one each. */
#include "program.h"
#include <pthread.h>

enum { SMALL = 200, ROUNDS = 20000 };

static const bw_slab_class classes[] = {{64, SMALL}, {4096, 2}};
static bw_slab *slab;

static uint64_t outstanding(void)
{
    bw_slab_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_slab_query(slab, &info));
    return info.outstanding;
}

static void refused(bw_slab_cache *cache)
{
    bw_slab_cache *none = cache;
    bw_block block, other, kept;

    EXPECT(bw_slab_cache_create(slab, 4097, &none) == BW_EINVAL && none == NULL);
    OK(bw_slab_cache_take(cache, &block));
    OK(bw_slab_cache_return(cache, &block));
    EXPECT(bw_slab_cache_return(cache, &block) == BW_ERETURNED);
    EXPECT(bw_slab_return(slab, &block) == BW_ERETURNED);
    kept = block;
    block.addr += 8;
    EXPECT(bw_slab_cache_return(cache, &block) == BW_EINVAL);
    block.addr = (uint64_t)(uintptr_t)&block;
    EXPECT(bw_slab_cache_return(cache, &block) == BW_EFOREIGN);
    /* The one that was returned last is warm. */
    OK(bw_slab_cache_take(cache, &other));
    EXPECT(other.addr == kept.addr && other.length == 64 && other.lkey == kept.lkey);
    OK(bw_slab_cache_return(cache, &other));
}

/* Each block is taken once, and returned either to the cache or to the slab. */
static void all(bw_slab_cache *cache)
{
    static bw_block blocks[SMALL];
    bw_block one = {0, 0, 0}, large;

    for (int at = 0; at < SMALL; at++) {
        OK(bw_slab_cache_take(cache, &blocks[at]));
        for (int before = 0; before < at; before++)
            EXPECT(blocks[before].addr != blocks[at].addr);
    }
    EXPECT(bw_slab_cache_take(cache, &one) == BW_ENOBLOCK && one.addr == 0);
    EXPECT(bw_slab_take(slab, 64, &one) == BW_ENOBLOCK);
    EXPECT(outstanding() == SMALL);
    /* Of another length: to the slab. */
    OK(bw_slab_take(slab, 65, &large));
    OK(bw_slab_cache_return(cache, &large));
    EXPECT(outstanding() == SMALL);
    for (int at = 0; at < SMALL; at++)
        OK(at & 1 ? bw_slab_cache_return(cache, &blocks[at]) : bw_slab_return(slab, &blocks[at]));
    /* Those that the cache has are out. */
    EXPECT(outstanding() > 0 && outstanding() <= 64);
}

static void *one_thread(void *unused)
{
    bw_slab_cache *cache;
    bw_block blocks[8];

    OK(bw_slab_cache_create(slab, 64, &cache));
    for (int round = 0; round < ROUNDS; round++) {
        for (unsigned at = 0; at < 8; at++) {
            OK(bw_slab_cache_take(cache, &blocks[at]));
            *(uint64_t *)(uintptr_t)blocks[at].addr = blocks[at].addr;
        }
        for (unsigned at = 0; at < 8; at++) {
            EXPECT(*(uint64_t *)(uintptr_t)blocks[at].addr == blocks[at].addr);
            *(uint64_t *)(uintptr_t)blocks[at].addr = 0;
            OK(bw_slab_cache_return(cache, &blocks[at]));
        }
    }
    OK(bw_slab_cache_destroy(cache));
    return unused;
}

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;
    bw_region *region;
    bw_region_attr attr;
    bw_slab_cache *cache;
    pthread_t thread;
    uint64_t bytes;

    OK(bw_pd_create(device, &pd));
    OK(bw_region_attr_default(&attr, sizeof attr));
    OK(bw_slab_bytes(classes, 2, &bytes));
    attr.length = bytes;
    OK(bw_region_create(pd, &attr, &region));
    OK(bw_slab_create(region, classes, 2, &slab));
    OK(bw_slab_cache_create(slab, 1, &cache));
    EXPECT(outstanding() == 0 && bw_slab_destroy(slab) == BW_EBUSY);
    refused(cache);
    all(cache);
    OK(bw_slab_cache_destroy(cache));
    EXPECT(outstanding() == 0);

    EXPECT(pthread_create(&thread, NULL, one_thread, NULL) == 0);
    one_thread(NULL);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(outstanding() == 0);
    OK(bw_slab_destroy(slab));
    OK(bw_region_destroy(region));
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
