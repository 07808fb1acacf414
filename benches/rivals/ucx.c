/*
 * Both ends of UCX's shared memory in one thread, so that Valgrind counts what a message takes and no waiting:
 * ucx put|am|tag BYTES MESSAGES. Each message is sent, and its receiver makes progress until it is there. (`tag`
 * posts the receive before.) `cargo xtask race` runs it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#define CHECK(call)                                                                                                  \
    do {                                                                                                             \
        ucs_status_t status = (call);                                                                                \
        if (status != UCS_OK) {                                                                                      \
            fprintf(stderr, "%s: %s\n", #call, ucs_status_string(status));                                           \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

enum { ID = 7, MAX = 1 << 16 };

static ucp_worker_h sender, receiver;
static ucp_ep_h ep;
static unsigned received;
static char from[MAX], *to;

static void settle(void *request)
{
    if (request == NULL)
        return;
    if (UCS_PTR_IS_ERR(request))
        CHECK(UCS_PTR_STATUS(request));
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        ucp_worker_progress(sender);
        ucp_worker_progress(receiver);
    }
    ucp_request_free(request);
}

static ucs_status_t arrived(void *arg, const void *header, size_t header_length, void *data, size_t length,
                            const ucp_am_recv_param_t *param)
{
    (void)arg, (void)header, (void)header_length, (void)param;
    memcpy(to, data, length);
    received++;
    return UCS_OK;
}

static ucp_worker_h worker(ucp_context_h context)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_worker_h made;
    CHECK(ucp_worker_create(context, &params, &made));
    return made;
}

static void am(size_t bytes)
{
    ucp_request_param_t param = {0};
    unsigned before = received;
    settle(ucp_am_send_nbx(ep, ID, NULL, 0, from, bytes, &param));
    while (received == before)
        ucp_worker_progress(receiver);
}

static void tag(size_t bytes)
{
    ucp_request_param_t param = {0};
    void *receive = ucp_tag_recv_nbx(receiver, to, bytes, ID, (ucp_tag_t)-1, &param);
    settle(ucp_tag_send_nbx(ep, from, bytes, ID, &param));
    settle(receive);
}

static ucp_rkey_h rkey;

static void put(size_t bytes)
{
    ucp_request_param_t param = {0};
    settle(ucp_put_nbx(ep, from, bytes, (uint64_t)to, rkey, &param));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*send)(size_t bytes);
    } ways[] = {{"put", put}, {"am", am}, {"tag", tag}};
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_TAG | UCP_FEATURE_RMA};
    /* Of UCX's own, so that the other end can map it. */
    ucp_mem_map_params_t memory = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .length = MAX,
                                   .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t target = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
                                      .id = ID,
                                      .cb = arrived};
    ucp_ep_params_t peer = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_config_t *config;
    ucp_context_h context;
    ucp_address_t *address;
    ucp_mem_h mapped;
    size_t length, bytes, way = 0;
    void *packed;
    long messages;

    if (argc != 4) {
        fprintf(stderr, "usage: ucx put|am|tag BYTES MESSAGES\n");
        return 2;
    }
    while (way < 3 && strcmp(argv[1], ways[way].name) != 0)
        way++;
    bytes = strtoul(argv[2], NULL, 10);
    messages = strtol(argv[3], NULL, 10);
    if (way == 3 || bytes > MAX || messages < 1) {
        fprintf(stderr, "ucx: one of put, am and tag, at most %d bytes, at least one message\n", MAX);
        return 2;
    }
    CHECK(ucp_config_read(NULL, NULL, &config));
    CHECK(ucp_init(&params, config, &context));
    sender = worker(context);
    receiver = worker(context);
    CHECK(ucp_worker_set_am_recv_handler(receiver, &handler));
    CHECK(ucp_worker_get_address(receiver, &address, &length));
    peer.address = address;
    CHECK(ucp_ep_create(sender, &peer, &ep));
    CHECK(ucp_mem_map(context, &memory, &mapped));
    CHECK(ucp_mem_query(mapped, &target));
    to = target.address;
    CHECK(ucp_rkey_pack(context, mapped, &packed, &length));
    CHECK(ucp_ep_rkey_unpack(ep, packed, &rkey));
    while (messages--)
        ways[way].send(bytes);
    return 0;
}
