/*
 * Faults on request, to see how the target recovers: injected ones on the software device, and on any
 * device a completion queue that is too small at first, and overruns when a host has much in flight.
 */
#include "target.h"

static const struct {
    const char *name;
    uint32_t fault;
} faults[] = {
    {"cq-err", BW_FAULT_CQ_OVERRUN},
    {"srq-err", BW_FAULT_SRQ_ERR},
    {"qp-fatal", BW_FAULT_QP_FATAL},
    {"device-fatal", BW_FAULT_DEVICE_FATAL},
};
static const char link_fault[] = "link@";

/* NAME@REQUEST: at that many requests of the device from when it is injected. */
void fault_parse(struct target *target, const char *text)
{
    const char *at = strchr(text, '@');
    char *rest = NULL;

    if (strncmp(text, link_fault, strlen(link_fault)) == 0) {
        target->break_link = (uint32_t)strtoull(at + 1, &rest, 10);
        if (*rest == '\0' && target->break_link > 0)
            return;
        rest = NULL;
    }
    for (size_t i = 0; at != NULL && i < sizeof faults / sizeof faults[0]; i++) {
        if (strlen(faults[i].name) != (size_t)(at - text) || strncmp(faults[i].name, text, (size_t)(at - text)) != 0)
            continue;
        target->fault = (bw_soft_step){
            .trigger = BW_AT_REQUEST, .fault = faults[i].fault, .at = strtoull(at + 1, &rest, 10)};
        target->inject = true;
    }
    if (rest == NULL || *rest != '\0' || target->fault.at == 0)
        die("%s: give cq-err, srq-err, qp-fatal, device-fatal or link, and when: cq-err@1000", text);
}

/* When the first I/O queue has connected. It happens once. */
void fault_inject(struct queue *queue)
{
    struct worker *worker = queue->worker;
    struct target *target = worker->target;

    if (!target->inject || queue->qid == 0)
        return;
    target->inject = false;
    if (target->fault.fault == BW_FAULT_CQ_OVERRUN)
        target->fault.value = worker->cqn;
    else if (target->fault.fault == BW_FAULT_SRQ_ERR)
        target->fault.value = worker->srqn;
    else if (target->fault.fault == BW_FAULT_QP_FATAL)
        target->fault.value = queue->qp_num;
    CHECK(bw_soft_inject(target->device, &target->fault, 1));
}

/* At that many messages to a replica, on any device. */
void fault_link(struct target *target, bw_link *link)
{
    bw_fault fault = {.size = sizeof fault, .family = BW_FAMILY_EVENT, .number = BW_EVENT_QP_FATAL};

    if (target->break_link > 0 && --target->break_link == 0)
        CHECK(bw_link_report_fault(link, &fault));
}
