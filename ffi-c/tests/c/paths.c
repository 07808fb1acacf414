/*
 * How packets go to the peer: what a program says is read back, of queue pairs and of links; what cannot
 * be is refused.
 */
#include "link.h"

static bw_device *device;
static bw_pd *pd;

static bw_connect_attr path(void)
{
    bw_connect_attr attr;

    OK(bw_connect_attr_default(&attr, sizeof attr));
    EXPECT(attr.sl == 0 && attr.traffic_class == 0 && attr.flow_label == 0);
    EXPECT(attr.pkey_index == 0 && attr.hop_limit == 0 && attr.udp_sport == 0);
    attr.sl = 5;
    attr.traffic_class = 255;
    attr.flow_label = 0xfffff;
    attr.hop_limit = 255;
    attr.udp_sport = 0xffff;
    return attr;
}

static void is_read_back(const bw_qp_attr *attr)
{
    EXPECT(attr->qp_state == BW_QPS_RTS && attr->qp_num != 0 && attr->qp_type == BW_QPT_RC);
    EXPECT(attr->ah_attr.sl == 5 && attr->ah_attr.is_global != 0);
    EXPECT(attr->ah_attr.traffic_class == 255 && attr->ah_attr.flow_label == 0xfffff);
    EXPECT(attr->ah_attr.hop_limit == 255 && attr->pkey_index == 0);
    EXPECT(attr->udp_sport == 0xffff);
}

static bw_qp_attr query(struct end *end)
{
    bw_qp_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    OK(bw_qp_query(end->qp, &attr));
    return attr;
}

static void queue_pairs(void)
{
    struct end a = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end b = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct end datagrams = end_create(device, pd, BW_QPT_UD, NULL, NULL);
    bw_connect_attr attr, bad[7];
    bw_endpoint to_b;
    bw_qp_attr found;

    memset(&to_b, 0, sizeof to_b);
    to_b.size = sizeof to_b;
    OK(bw_qp_endpoint(b.qp, &to_b));
    for (unsigned n = 0; n < 7; n++)
        bad[n] = path();
    bad[0].sl = 16;
    bad[1].traffic_class = 256;
    bad[2].flow_label = 1 << 20;
    bad[3].pkey_index = 1;
    bad[4].hop_limit = 256;
    bad[5].udp_sport = 4791;
    bad[6].udp_sport = 0x10000;
    for (unsigned n = 0; n < 7; n++) {
        EXPECT(bw_qp_connect(a.qp, &to_b, &bad[n]) == BW_EINVAL);
        found = query(&a);
        EXPECT(found.qp_state == BW_QPS_INIT && found.udp_sport == 0);
    }
    attr = path();
    EXPECT(bw_qp_start(datagrams.qp, &attr) == BW_EUNSUPPORTED);
    attr.udp_sport = 0;
    OK(bw_qp_start(datagrams.qp, &attr));

    attr = path();
    OK(bw_qp_connect(a.qp, &to_b, &attr));
    found = query(&a);
    is_read_back(&found);
    /* An older program's: as long as it is, and no longer. */
    memset(&found, 0x5a, sizeof found);
    found.size = offsetof(bw_qp_attr, udp_sport);
    OK(bw_qp_query(a.qp, &found));
    EXPECT(found.ah_attr.traffic_class == 255 && found.udp_sport == 0x5a5a5a5a);
    OK(bw_qp_reset(a.qp, NULL, NULL));
    found = query(&a);
    EXPECT(found.udp_sport == 0 && found.ah_attr.traffic_class == 0);
    attr.size = offsetof(bw_connect_attr, sl);
    OK(bw_qp_init(a.qp, &attr));
    OK(bw_qp_connect(a.qp, &to_b, &attr));
    found = query(&a);
    EXPECT(found.ah_attr.traffic_class == 0 && found.ah_attr.is_global == 0);
    end_destroy(&a);
    end_destroy(&b);
    end_destroy(&datagrams);
}

static void links(void)
{
    struct side a, b;
    bw_link_init init_a, init_b;
    bw_connect_attr attr = path();
    bw_qp_attr found;

    side_memory(&a, pd, &init_a);
    side_memory(&b, pd, &init_b);
    init_a.connect = init_b.connect = &attr;
    attr.sl = 16;
    EXPECT(bw_link_create_pair(pd, &init_a, &a.link, pd, &init_b, &b.link) == BW_EINVAL);
    attr.sl = 5;
    attr.gid_index = 1;
    EXPECT(bw_link_create_pair(pd, &init_a, &a.link, pd, &init_b, &b.link) == BW_EINVAL);
    attr.gid_index = 0;
    OK(bw_link_create_pair(pd, &init_a, &a.link, pd, &init_b, &b.link));
    both_ready(&a, &b);
    memset(&found, 0, sizeof found);
    found.size = sizeof found;
    OK(bw_link_query_qp(a.link, &found));
    is_read_back(&found);
    OK(bw_link_query_qp(b.link, &found));
    is_read_back(&found);
    side_end(&a);
    side_poll(&b);
    side_end(&b);
}

int main(void)
{
    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    queue_pairs();
    links();
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
