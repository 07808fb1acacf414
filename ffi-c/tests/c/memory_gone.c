/* Memory that cannot be accessed: registration says which page, and later accesses fail their request. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "program.h"
#include <sys/mman.h>
#include <unistd.h>

static bw_device *device;
static bw_pd *pd;
static size_t page;

/* What registering `pages` pages at `start` returns. */
static int registered(char *start, size_t pages, uint32_t access)
{
    bw_mr *mr = NULL;
    int made = bw_mr_create(pd, start, pages * page, access, &mr);

    EXPECT((made == BW_OK) == (mr != NULL));
    if (mr != NULL)
        OK(bw_mr_destroy(mr));
    return made;
}

static void registration(void)
{
    const uint32_t local = BW_ACCESS_LOCAL_WRITE;
    char *start = (char *)mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char name[32];

    EXPECT(start != MAP_FAILED);
    EXPECT(registered(start, 8, local) == BW_OK);
    EXPECT(mprotect(start + 5 * page, page, PROT_READ) == 0);
    EXPECT(registered(start, 8, local) == BW_EFAULT);
    snprintf(name, sizeof name, "%p", (void *)(start + 5 * page));
    EXPECT(strstr(bw_last_error(), name) != NULL);
    EXPECT(registered(start, 8, 0) == BW_OK);
    EXPECT(registered(start, 5, local) == BW_OK);
    EXPECT(munmap(start + 2 * page, page) == 0);
    EXPECT(registered(start, 8, 0) == BW_EFAULT);
    snprintf(name, sizeof name, "%p", (void *)(start + 2 * page));
    EXPECT(strstr(bw_last_error(), name) != NULL);
    EXPECT(registered(start, 8, local | BW_ACCESS_ON_DEMAND) == BW_OK);
    munmap(start, 8 * page);
}

/* A WRITE to memory that its owner has protected since. */
static void access_later(void)
{
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    char *start = (char *)mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const uint32_t access = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE;
    bw_mr_info info;
    bw_send_wr wr;
    bw_sge sge;
    bw_mr *mr;
    bw_wc wc;

    EXPECT(start != MAP_FAILED);
    end_connect(&a, &b);
    end_connect(&b, &a);
    OK(bw_mr_create(pd, start, page, access, &mr));
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    OK(bw_mr_query(mr, &info));
    sge = end_sge(&a, 0, 64);
    wr = send_of(1, &sge);
    wr.opcode = BW_WR_RDMA_WRITE;
    wr.remote_addr = info.addr;
    wr.rkey = info.rkey;
    OK(bw_post_send(a.qp, &wr, 1, NULL));
    expect_wc(&a, 1, BW_WC_SUCCESS);
    EXPECT(mprotect(start, page, PROT_READ) == 0);
    OK(bw_post_send(a.qp, &wr, 1, NULL));
    EXPECT(bw_poll_one(a.cq, &wc) == 1);
    EXPECT(wc.status == BW_WC_REM_ACCESS_ERR || wc.status == BW_WC_REM_OP_ERR);
    OK(bw_mr_destroy(mr));
    end_destroy(&a);
    end_destroy(&b);
    munmap(start, page);
}

/* A region that core files keep. */
static void core_files(void)
{
    bw_region_attr attr;
    bw_region *region;

    OK(bw_region_attr_default(&attr, sizeof attr));
    EXPECT(attr.in_core_files == 0);
    attr.length = 4096;
    attr.in_core_files = 1;
    OK(bw_region_create(pd, &attr, &region));
    OK(bw_region_destroy(region));
}

int main(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    registration();
    access_later();
    core_files();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
