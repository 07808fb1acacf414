/* Two threads that meet over TCP, and a peer that does not come, or goes. */
#include "program.h"
#include <poll.h>
#include <pthread.h>

enum { SOON = 30000 };

static bw_device *device;
static bw_pd *pd;
static uint32_t port;

static bw_conn_info memory_of(struct end *end)
{
    bw_conn_info info;

    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    info.mtu = BW_MTU_1024;
    info.addr = end->memory.addr;
    info.length = end->memory.length;
    info.rkey = end->memory.rkey;
    return info;
}

/* Both sides do this. */
static bw_conn_info meet(struct end *end, bw_tcp_conn *conn)
{
    bw_conn_info ours = memory_of(end), theirs;
    bw_endpoint endpoint, peer;

    memset(&endpoint, 0, sizeof endpoint);
    memset(&peer, 0, sizeof peer);
    memset(&theirs, 0, sizeof theirs);
    endpoint.size = peer.size = sizeof peer;
    theirs.size = sizeof theirs;
    OK(bw_qp_endpoint(end->qp, &endpoint));
    OK(bw_tcp_exchange(conn, &endpoint, &ours, &peer, &theirs, SOON));
    OK(bw_qp_connect(end->qp, &peer, NULL));
    OK(bw_tcp_barrier(conn, SOON));
    return theirs;
}

static void *other(void *nothing)
{
    struct end end = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    bw_tcp_conn *conn;

    OK(bw_tcp_connect("localhost", port, SOON, &conn));
    bw_conn_info theirs = meet(&end, conn);
    EXPECT(theirs.mtu == BW_MTU_1024 && theirs.length == 4096);
    OK(bw_post_write_inline(end.qp, 1, "met", 4, theirs.addr, theirs.rkey, BW_SEND_SIGNALED));
    OK(bw_ring_sq(end.qp));
    expect_wc(&end, 1, BW_WC_SUCCESS);
    OK(bw_tcp_barrier(conn, SOON));
    OK(bw_tcp_conn_destroy(conn));
    end_destroy(&end);
    return nothing;
}

int main(void)
{
    bw_tcp_listener *listener, *second;
    bw_tcp_conn *conn;
    pthread_t thread;

    device = soft(BW_CLOCK_REAL);
    OK(bw_pd_create(device, &pd));
    OK(bw_tcp_listener_create("127.0.0.1", 0, &listener));
    port = (uint32_t)bw_tcp_listener_port(listener);
    EXPECT(port > 0 && port <= 65535);
    EXPECT(bw_tcp_listener_create("127.0.0.1", port, &second) == BW_ECONN && second == NULL);
    EXPECT(bw_tcp_listener_create("127.0.0.1", 65536, &second) == BW_EINVAL);
    EXPECT(bw_tcp_accept(listener, 1, &conn) == BW_ETIMEDOUT && conn == NULL);
    EXPECT(bw_tcp_connect("127.0.0.1", 65536, 1, &conn) == BW_EINVAL && conn == NULL);

    struct end end = end_create(device, pd, BW_QPT_RC, NULL, NULL);
    struct pollfd peer;
    peer.fd = bw_tcp_listener_fd(listener);
    peer.events = POLLIN;
    EXPECT(poll(&peer, 1, 0) == 0);
    EXPECT(bw_tcp_accept(listener, 0, &conn) == BW_ETIMEDOUT && conn == NULL);
    EXPECT(pthread_create(&thread, NULL, other, NULL) == 0);
    EXPECT(poll(&peer, 1, SOON) == 1);
    OK(bw_tcp_accept(listener, 0, &conn));
    meet(&end, conn);
    OK(bw_tcp_barrier(conn, SOON));
    EXPECT(strcmp(end_bytes(&end, 0), "met") == 0);
    EXPECT(pthread_join(thread, NULL) == 0);

    /* It has gone. */
    EXPECT(bw_tcp_barrier(conn, SOON) == BW_ECONN);
    OK(bw_tcp_conn_destroy(conn));
    /* One that connects and says nothing. */
    OK(bw_tcp_connect("127.0.0.1", port, SOON, &conn));
    EXPECT(bw_tcp_barrier(conn, 1) == BW_ETIMEDOUT);
    OK(bw_tcp_conn_destroy(conn));
    OK(bw_tcp_listener_destroy(listener));
    /* Nobody listens there any more. */
    EXPECT(bw_tcp_connect("127.0.0.1", port, SOON, &conn) == BW_ECONN && conn == NULL);
    end_destroy(&end);
    OK(bw_pd_destroy(pd));
    OK(bw_device_close(device));
    return 0;
}
