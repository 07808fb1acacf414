/*
 * An NVMe over RDMA target: one subsystem with one namespace, for the NVMe hosts that connect.
 *
 *     nvmf-target [OPTION...] ADDRESS
 *
 * README.md says how to use it, and where to read on. This file has the arguments and the main thread,
 * which takes events of the communication manager and of the device and hands them to the workers.
 */
#include "target.h"
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

_Noreturn void die(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("nvmf-target: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(EXIT_FAILURE);
}

void *must_calloc(size_t count, size_t size)
{
    void *memory = calloc(count, size);

    if (memory == NULL)
        die("no memory");
    return memory;
}

static const char usage[] =
    "usage: nvmf-target [OPTION...] ADDRESS\n"
    "\n"
    "Serves NVMe over RDMA at ADDRESS, an address of an RDMA device of this host.\n"
    "\n"
    "  -p, --port PORT        the port; 4420\n"
    "  -n, --nqn NQN          the subsystem's name; nqn.2014-08.org.nvmexpress:bellwire\n"
    "  -m, --memory SIZE      a namespace in memory; 64M\n"
    "  -f, --file FILE        a namespace in a file, or on a block device\n"
    "  -s, --size SIZE        of the file, if it is new or shorter\n"
    "  -b, --block SIZE       bytes of a logical block, 512 or 4096; 512\n"
    "  -r, --replicate HOST:PORT   write to the replica there, too; with one worker\n"
    "      --alone            do not wait for a replica that is gone\n"
    "      --replica PORT     be the replica of the target that comes at this port\n"
    "  -t, --threads COUNT    workers; all queues of a host are one worker's; 1\n"
    "  -w, --wait POLLS       polls that find nothing before a worker sleeps; 0. Some thousand make\n"
    "                         it quicker where each worker has a processor to itself\n"
    "  -d, --device PROVIDER  rdma; soft:NAME for the software device; rdma\n"
    "      --limits           say what a host, an address and a worker may have, and nothing else\n"
    "  -q, --quiet            do not say which hosts come and go\n"
    "      --overrun ENTRIES  of the first completion queue: too few, to see it recover\n"
    "      --fault NAME@N     on the software device, at its N-th request after the first I/O queue\n"
    "                         has connected: cq-err, srq-err, qp-fatal or device-fatal. On any\n"
    "                         device, at the N-th message to a replica: link\n"
    "\n"
    "Sizes may end in K, M or G.\n";

struct options {
    const char *address, *file, *provider;
    char *replica; /* its host; */
    uint32_t replica_port;
    uint32_t listens; /* the port for a primary */
    bool alone;
    uint64_t memory, size;
    uint32_t port;
};

static uint64_t number(const char *text, uint64_t least, uint64_t most, bool is_size)
{
    static const char units[] = "KMG";
    char *rest;
    uint64_t value;

    errno = 0;
    value = strtoull(text, &rest, 10);
    const char *unit = is_size && *rest != '\0' ? strchr(units, *rest) : NULL;
    for (const char *at = units; unit != NULL && at <= unit; at++)
        value = value > UINT64_MAX / 1024 ? UINT64_MAX : value * 1024;
    if (*text < '0' || *text > '9' || rest[unit != NULL] != '\0' || errno != 0 || value < least ||
        value > most)
        die("%s: give a number from %llu to %llu", text, (unsigned long long)least,
            (unsigned long long)most);
    return value;
}

/* HOST:PORT, where the host may be in brackets. */
static void split_address(char *text, struct options *options)
{
    char *colon = strrchr(text, ':');

    if (colon == NULL)
        die("%s: give the replica as HOST:PORT", text);
    *colon = '\0';
    options->replica_port = (uint32_t)number(colon + 1, 1, 65535, false);
    if (*text == '[' && colon[-1] == ']') {
        colon[-1] = '\0';
        text++;
    }
    options->replica = text;
}

static struct options read_options(int argc, char **argv, struct target *target)
{
    static const struct option names[] = {
        {"port", 1, NULL, 'p'},  {"nqn", 1, NULL, 'n'},     {"memory", 1, NULL, 'm'},
        {"file", 1, NULL, 'f'},  {"size", 1, NULL, 's'},    {"block", 1, NULL, 'b'},
        {"wait", 1, NULL, 'w'},  {"threads", 1, NULL, 't'}, {"device", 1, NULL, 'd'},
        {"quiet", 0, NULL, 'q'}, {"help", 0, NULL, 'h'},    {"overrun", 1, NULL, 'o'},
        {"fault", 1, NULL, 'x'}, {"replicate", 1, NULL, 'r'},
        {"alone", 0, NULL, 'a'}, {"replica", 1, NULL, 'l'},
        {"limits", 0, NULL, 'i'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {.provider = "rdma", .memory = 64 << 20, .port = 4420};
    const char *nqn = "nqn.2014-08.org.nvmexpress:bellwire";
    int option;

    target->block_shift = 9;
    target->workers_count = 1;
    while ((option = getopt_long(argc, argv, "p:n:m:f:s:b:w:t:d:r:qh", names, NULL)) != -1) {
        switch (option) {
        case 'p':
            options.port = (uint32_t)number(optarg, 1, 65535, false);
            break;
        case 'n':
            nqn = optarg;
            break;
        case 'm':
            options.memory = number(optarg, PAGE, UINT64_C(1) << 40, true);
            break;
        case 'f':
            options.file = optarg;
            break;
        case 's':
            options.size = number(optarg, PAGE, UINT64_C(1) << 62, true);
            break;
        case 'b':
            target->block_shift = number(optarg, 512, 4096, true) == 4096 ? 12 : 9;
            if (1u << target->block_shift != number(optarg, 512, 4096, true))
                die("a block has 512 or 4096 bytes");
            break;
        case 'w':
            target->spin = (uint32_t)number(optarg, 0, UINT32_MAX, false);
            break;
        case 't':
            target->workers_count = (uint32_t)number(optarg, 1, 16, false);
            break;
        case 'd':
            options.provider = optarg;
            break;
        case 'r':
            split_address(optarg, &options);
            break;
        case 'a':
            options.alone = true;
            break;
        case 'l':
            options.listens = (uint32_t)number(optarg, 1, 65535, false);
            break;
        case 'q':
            target->quiet = true;
            break;
        case 'o':
            target->overrun = (uint32_t)number(optarg, 1, 4096, false);
            break;
        case 'i':
            limits_print();
            exit(EXIT_SUCCESS);
        case 'x':
            fault_parse(target, optarg);
            break;
        case 'h':
            fputs(usage, stdout);
            exit(EXIT_SUCCESS);
        default:
            fputs(usage, stderr);
            exit(EXIT_FAILURE);
        }
    }
    if (optind + 1 != argc) {
        fputs(usage, stderr);
        exit(EXIT_FAILURE);
    }
    options.address = argv[optind];
    if (target->inject && target->workers_count > 1)
        die("--fault is for one worker");
    if (options.replica != NULL && target->workers_count > 1)
        die("--replicate is for one worker");
    if (options.replica != NULL && options.listens != 0)
        die("give --replicate or --replica: a replica has none itself");
    if (strlen(nqn) > NQN_MAX || strncmp(nqn, "nqn.", 4) != 0)
        die("%s: a name begins with \"nqn.\" and has at most %d characters", nqn, NQN_MAX);
    strcpy(target->nqn, nqn);
    return options;
}

/* FNV-1a. */
static uint64_t hash(const char *text, uint64_t sum)
{
    for (; *text != '\0'; text++)
        sum = (sum ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
    return sum;
}

/* Hosts know the namespace again after a restart, by identifiers that depend on the NQN alone. */
static void name_namespace(struct target *target)
{
    uint64_t first = hash(target->nqn, UINT64_C(0xcbf29ce484222325)), second = hash(target->nqn, first);

    put64(target->guid, first);
    put64(target->guid + 8, second);
    snprintf(target->serial, sizeof target->serial, "%016llx", (unsigned long long)first);
}

/* The listener, and with it the device: that of its address. */
static bw_cm_id *listen_at(struct target *target, const struct options *options)
{
    bw_cm_id *listener;

    CHECK(bw_cm_channel_create(options->provider, &target->channel));
    CHECK(bw_cm_id_create(target->channel, BW_PS_TCP, NULL, &listener));
    CHECK(bw_cm_set_option(listener, BW_CM_REUSEADDR, 1));
    int result = bw_cm_bind(listener, options->address, options->port);
    if (result == BW_OK)
        result = bw_cm_id_device(listener, &target->device);
    if (result != BW_OK)
        die("%s port %u: %s (%s)", options->address, options->port, bw_strerror(result),
            bw_last_error());
    CHECK(bw_pd_create(target->device, &target->pd));
    return listener;
}

static struct worker *worker_of_peer(struct target *target, const bw_cm_id *id)
{
    char host[BW_ADDR_MAX] = "";
    uint32_t port;

    bw_cm_peer_addr(id, host, &port);
    return &target->workers[hash(host, 0) % target->workers_count];
}

/* Some events: a host that connects again and again does not keep this thread from its other work. */
static int take_cm_events(struct target *target)
{
    struct message message = {.kind = MESSAGE_CM, .cm.size = sizeof message.cm};
    int result = BW_OK;

    for (int i = 0; i < BATCH && (result = bw_cm_get_event(target->channel, &message.cm, 0)) == BW_OK; i++) {
        uintptr_t context = (uintptr_t)message.cm.context;

        if (message.cm.event == BW_CM_EVENT_CONNECT_REQUEST) {
            if (!worker_tell(worker_of_peer(target, message.cm.request), &message))
                bw_cm_id_destroy(message.cm.request); /* and so rejects it */
        } else if (message.cm.event == BW_CM_EVENT_DEVICE_REMOVAL)
            die("%s", bw_cm_event_str(message.cm.event));
        else if (context != 0)
            worker_tell(&target->workers[context % target->workers_count], &message);
    }
    return result;
}

/* Events that cannot be taken, for example because no descriptor is left, are tried again after a pause. */
static void pause_after(int result)
{
    static char said[BW_WHY_MAX];
    const char *why = bw_last_error();

    if (result == BW_OK || result == BW_EAGAIN)
        return;
    if (strncmp(said, why, sizeof said - 1) != 0)
        fprintf(stderr, "events cannot be taken, it is tried again: %s\n", why);
    snprintf(said, sizeof said, "%s", why);
    usleep(100000);
}

/* An event that concerns no link. */
static void device_event(void *context, uint32_t type, uint32_t element, uint32_t number)
{
    struct target *target = context;
    struct message message = {.kind = MESSAGE_ASYNC, .async.size = sizeof message.async};
    bw_fault fault = {.size = sizeof fault, .family = BW_FAMILY_EVENT, .number = (int32_t)type};
    bw_class means = {.size = sizeof means};

    message.async.event_type = type;
    message.async.element = element;
    message.async.number = number;
    CHECK(bw_classify(&fault, &means));
    if (means.scope == BW_SCOPE_DEVICE && means.recovery == BW_RECOVERY_CLOSE_DEVICE)
        die("%s: %s %s", means.name, means.text, means.advice);
    if (means.recovery == BW_RECOVERY_NONE)
        return;
    fprintf(stderr, "%s %u: %s\n", means.name, number, means.text);
    for (uint32_t i = 0; i < target->workers_count; i++)
        worker_tell(&target->workers[i], &message);
}

/* Links take the events that are theirs, and the others when they are polled first: both ends are in
   `device_event`. */
static void take_async_events(struct target *target)
{
    bw_async_event_info info = {.size = sizeof info};
    bw_async_event *event;

    for (int i = 0; i < BATCH && bw_get_async_event(target->device, &info, &event) == BW_OK; i++)
        CHECK(bw_device_dispatch_async_event(target->device, event));
}

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
    (void)signal;
    stop = 1;
}

/* Nothing of another computer is waited for: this computer's disk has not finished its requests. */
static void on_alarm(int signal)
{
    static const char text[] = "nvmf-target: ends without its disk, which does not finish what was begun\n";

    (void)signal;
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    _exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
    struct target target = {0};
    struct options options = read_options(argc, argv, &target);
    struct sigaction action = {.sa_handler = on_signal};
    struct sigaction overdue = {.sa_handler = on_alarm};

    CHECK(bw_version_check(BW_VERSION));
    setvbuf(stdout, NULL, _IOLBF, 0);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGALRM, &overdue, NULL);
    name_namespace(&target);
    bw_cm_id *listener = listen_at(&target, &options);
    target.backend = options.file ? file_open(options.file, options.size)
                                  : memory_open(target.pd, options.memory);
    if (options.replica != NULL)
        target.backend = replicated_open(&target, target.backend, options.replica, options.replica_port,
                                         options.alone);
    CHECK(bw_device_set_event_hook(target.device, device_event, &target));
    target.blocks = target.backend->bytes >> target.block_shift;
    target.workers = must_calloc(target.workers_count, sizeof *target.workers);
    for (uint32_t i = 0; i < target.workers_count; i++)
        worker_start(&target, i);
    CHECK(bw_device_async_set_nonblocking(target.device, 1));
    struct replica *replica = NULL;
    if (options.listens != 0)
        replica = replica_start(&target, options.address, options.listens);
    CHECK(bw_cm_listen(listener, 64));
    printf("%s at %s port %u\n", target.nqn, options.address, options.port);

    struct pollfd fds[] = {
        {.fd = bw_cm_channel_fd(target.channel), .events = POLLIN},
        {.fd = bw_device_async_fd(target.device), .events = POLLIN},
    };
    while (!stop) {
        poll(fds, 2, 100);
        take_async_events(&target);
        pause_after(take_cm_events(&target));
    }
    alarm(STOP_SECONDS);

    CHECK(bw_cm_id_destroy(listener));
    for (uint32_t i = 0; i < target.workers_count; i++)
        worker_stop(&target.workers[i]);
    for (uint32_t i = 0; i < target.workers_count; i++)
        pthread_join(target.workers[i].thread, NULL);
    if (replica != NULL)
        replica_stop(replica);
    target.backend->ops->close(target.backend);
    free(target.workers);
    CHECK(bw_pd_destroy(target.pd));
    CHECK(bw_device_close(target.device));
    CHECK(bw_cm_channel_destroy(target.channel));
    return EXIT_SUCCESS;
}
