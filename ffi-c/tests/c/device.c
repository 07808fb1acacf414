/*
 * device [NAME [GID_INDEX]]: two queue pairs of a device that find each other by an entry of its GID
 * table, and memory that is registered otherwise than plainly. By default the software device, which
 * has no such memory; rxe has some.
 */
#include "program.h"

/* The next completion, and that it is good. */
static void good(struct end *end, uint64_t wr_id)
{
    bw_wc wc;
    int got;

    do
        got = bw_poll_one(end->cq, &wc);
    while (got == 0);
    EXPECT(got == 1 && wc.wr_id == wr_id && wc.status == BW_WC_SUCCESS);
}

static bw_endpoint endpoint_of(struct end *end, const bw_connect_attr *attr)
{
    bw_endpoint endpoint;

    memset(&endpoint, 0, sizeof endpoint);
    endpoint.size = sizeof endpoint;
    OK(bw_qp_endpoint_for(end->qp, attr, &endpoint));
    return endpoint;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "soft";
    const int is_soft = strcmp(name, "soft") == 0;
    bw_connect_attr by;
    bw_device *device;
    uint8_t gid[16];
    bw_pd *pd;

    OK(bw_connect_attr_default(&by, sizeof by));
    EXPECT(by.port_num == 1 && by.gid_index == -1);
    by.gid_index = argc > 2 ? atoi(argv[2]) : 0;
    by.traffic_class = 104;
    by.flow_label = 0xabcde;
    OK(bw_device_open(name, &device));
    OK(bw_pd_create(device, &pd));
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    bw_endpoint to_a = endpoint_of(&a, &by), to_b = endpoint_of(&b, &by);
    OK(bw_query_gid(device, 1, (uint32_t)by.gid_index, gid));
    EXPECT(memcmp(gid, to_a.gid, 16) == 0 && memcmp(gid, to_b.gid, 16) == 0);
    OK(bw_qp_connect(a.qp, &to_b, &by));
    OK(bw_qp_connect(b.qp, &to_a, &by));
    bw_qp_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    OK(bw_qp_query(a.qp, &attr));
    EXPECT(attr.ah_attr.is_global && attr.ah_attr.sgid_index == by.gid_index);
    EXPECT(attr.ah_attr.traffic_class == by.traffic_class);
    EXPECT(attr.ah_attr.flow_label == by.flow_label);

    bw_sge to = end_sge(&b, 0, 64), from = end_sge(&a, 0, 8);
    bw_recv_wr receive = recv_of(7, &to);
    bw_send_wr send = send_of(1, &from);
    memcpy(end_bytes(&a, 0), "by a GID", 8);
    OK(bw_post_recv(b.qp, &receive, 1, NULL));
    OK(bw_post_send(a.qp, &send, 1, NULL));
    good(&a, 1);
    good(&b, 7);
    EXPECT(memcmp(end_bytes(&b, 0), "by a GID", 8) == 0);

    /* An rxe device is no ConnectX. */
    EXPECT(bw_device_provider(device) == (is_soft ? BW_PROVIDER_SOFT : BW_PROVIDER_VERBS));

    /* It was opened by its name; the best is one with an active port, or there is a reason. */
    EXPECT(*bw_device_choice(device) == '\0');
    bw_device *best = NULL;
    OK(bw_device_open("auto", &best));
    EXPECT(strstr(bw_device_choice(best), "active port") != NULL);
    OK(bw_device_close(best));

    /* The list ends, and says why there is no more. */
    bw_device_info info;
    uint32_t count = 0;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    while (bw_device_at(count, &info) == BW_OK)
        count++;
    EXPECT(bw_device_at(count, &info) == BW_ENODEV);
    const char *why = strchr(bw_last_error(), ';');
    EXPECT(count > 1 || (why != NULL && strstr(why, "verbs: ") != NULL));

    /* Memory that is named by addresses from 64 KiB on. */
    const uint64_t iova = 65536;
    const uint32_t rights = BW_ACCESS_LOCAL_WRITE | BW_ACCESS_REMOTE_WRITE;
    char *memory = (char *)aligned_alloc(4096, 4096);
    bw_mr *mr = NULL;
    EXPECT(memory != NULL);
    int code = bw_mr_create_iova(pd, memory, 4096, iova, rights, &mr);
    if (is_soft) {
        EXPECT(code == BW_EUNSUPPORTED && mr == NULL);
        OK(bw_mr_create(pd, memory, 4096, rights, &mr));
    } else {
        EXPECT(code == BW_OK);
        bw_mr_info info;
        memset(&info, 0, sizeof info);
        info.size = sizeof info;
        OK(bw_mr_query(mr, &info));
        EXPECT(info.addr == iova && info.length == 4096);
        send.wr_id = 2;
        send.opcode = BW_WR_RDMA_WRITE;
        send.remote_addr = iova + 100;
        send.rkey = info.rkey;
        OK(bw_post_send(a.qp, &send, 1, NULL));
        good(&a, 2);
        EXPECT(memcmp(memory + 100, "by a GID", 8) == 0);
    }
    /* Neither has these. */
    bw_mr *none = NULL;
    EXPECT(bw_mr_reregister(mr, BW_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == BW_EUNSUPPORTED);
    EXPECT(bw_mr_create_dmabuf(pd, 0, 0, 4096, 0, rights, &none) == BW_EUNSUPPORTED);
    EXPECT(none == NULL);
    OK(bw_mr_destroy(mr));
    free(memory);

    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
