/* A datagram, and the answer to it by an address handle from its completion. */
#include "program.h"

static const char question[] = "who is there?";
static const char answer[] = "the one you asked";
enum { GRH = 40 };

int main(void)
{
    bw_device *device = soft(BW_CLOCK_REAL);
    bw_pd *pd;
    OK(bw_pd_create(device, &pd));
    struct end a = end_create(device, pd, BW_QPT_UD, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_UD, NULL, NULL);
    OK(bw_qp_start(a.qp, NULL));
    OK(bw_qp_start(b.qp, NULL));

    bw_connect_attr defaults;
    OK(bw_connect_attr_default(&defaults, sizeof defaults));
    bw_port_info port;
    memset(&port, 0, sizeof port);
    port.size = sizeof port;
    OK(bw_query_port(device, 1, &port));
    EXPECT(port.state == BW_PORT_ACTIVE);

    /* The way to b, with a global route: its header arrives in front. */
    bw_ah_attr path;
    bw_ah *to_b, *to_a;
    memset(&path, 0, sizeof path);
    OK(bw_query_gid(device, 1, 0, path.dgid));
    path.dlid = (uint16_t)port.lid;
    path.is_global = 1;
    path.flow_label = 0x12345;
    path.port_num = 1;
    OK(bw_ah_create(pd, &path, &to_b));

    bw_sge place = end_sge(&b, 0, 1024);
    bw_recv_wr receive = recv_of(1, &place);
    OK(bw_post_recv(b.qp, &receive, 1, NULL));
    memcpy(end_bytes(&a, 0), question, sizeof question);
    bw_sge data = end_sge(&a, 0, sizeof question);
    bw_send_wr send = send_of(2, &data);
    EXPECT(bw_post_send(a.qp, &send, 1, NULL) == BW_ENULL);
    send.ah = to_b;
    send.remote_qpn = end_number(&b);
    send.remote_qkey = defaults.qkey;
    OK(bw_post_send(a.qp, &send, 1, NULL));
    OK(bw_ah_destroy(to_b));
    expect_wc(&a, 2, BW_WC_SUCCESS);
    bw_wc wc = expect_wc(&b, 1, BW_WC_SUCCESS);
    EXPECT(wc.byte_len == GRH + sizeof question && (wc.wc_flags & BW_WC_GRH));
    EXPECT(strcmp(end_bytes(&b, GRH), question) == 0);

    /* And back. */
    bw_ah_attr back;
    OK(bw_ah_init_from_wc(&wc, end_bytes(&b, 0), 1, &back));
    EXPECT(back.dlid == path.dlid && back.flow_label == path.flow_label && back.is_global);
    EXPECT(memcmp(back.dgid, path.dgid, sizeof back.dgid) == 0);
    OK(bw_ah_create_from_wc(pd, &wc, end_bytes(&b, 0), 1, &to_a));
    place = end_sge(&a, 1024, 1024);
    receive = recv_of(3, &place);
    OK(bw_post_recv(a.qp, &receive, 1, NULL));
    bw_sge reply = {(uint64_t)(uintptr_t)answer, sizeof answer, 0};
    bw_send_wr response = send_of(4, &reply);
    response.send_flags |= BW_SEND_INLINE;
    response.ah = to_a;
    response.remote_qpn = wc.src_qp;
    response.remote_qkey = defaults.qkey;
    OK(bw_post_send(b.qp, &response, 1, NULL));
    expect_wc(&b, 4, BW_WC_SUCCESS);
    wc = expect_wc(&a, 3, BW_WC_SUCCESS);
    EXPECT(wc.src_qp == end_number(&b));
    EXPECT(strcmp(end_bytes(&a, 1024 + GRH), answer) == 0);

    OK(bw_ah_destroy(to_a));
    end_destroy(&a);
    end_destroy(&b);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
