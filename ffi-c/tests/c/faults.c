/* Every number has a class, known or not; what is known says what to do. */
#include "program.h"
#include <errno.h>
#include <limits.h>

static bw_fault fault(uint32_t family, int32_t number)
{
    bw_fault fault;

    memset(&fault, 0, sizeof fault);
    fault.size = sizeof fault;
    fault.family = family;
    fault.number = number;
    fault.transport = BW_QPT_RC;
    return fault;
}

static bw_class classified(const bw_fault *of)
{
    bw_class found;

    memset(&found, 0xaa, sizeof found);
    found.size = sizeof found;
    OK(bw_classify(of, &found));
    EXPECT(strlen(found.name) > 0 && strlen(found.text) > 0);
    EXPECT(strlen(found.cause) > 0 && strlen(found.advice) > 0);
    EXPECT(strncmp(bw_scope_str(found.scope), "not ", 4) != 0);
    EXPECT(strncmp(bw_blame_str(found.blame), "not ", 4) != 0);
    EXPECT(strncmp(bw_retry_str(found.retry), "not ", 4) != 0);
    EXPECT(strncmp(bw_execution_str(found.execution), "not ", 4) != 0);
    EXPECT(strncmp(bw_recovery_str(found.recovery), "not ", 4) != 0);
    return found;
}

static bw_class of(uint32_t family, int32_t number)
{
    bw_fault what = fault(family, number);
    return classified(&what);
}

static void refused(const bw_fault *what, int code)
{
    bw_class found;

    memset(&found, 0, sizeof found);
    found.size = sizeof found;
    EXPECT(bw_classify(what, &found) == code);
}

int main(void)
{
    static const int32_t numbers[] = {-1, 24, 255, 256, 65536 + 12, INT_MAX, INT_MIN};
    bw_class found;
    bw_fault what;
    int32_t number;
    size_t at;

    for (number = 0; number < 24; number++) {
        found = of(BW_FAMILY_STATUS, number);
        EXPECT(strcmp(found.text, bw_wc_status_str((uint32_t)number)) == 0);
        EXPECT(strcmp(found.name, bw_wc_status_name((uint32_t)number)) == 0);
    }
    for (number = 0; number < 20; number++) {
        found = of(BW_FAMILY_EVENT, number);
        EXPECT(strcmp(found.text, bw_event_type_str((uint32_t)number)) == 0);
        EXPECT(strcmp(found.name, bw_event_type_name((uint32_t)number)) == 0);
    }
    for (number = 0; number < 16; number++) {
        found = of(BW_FAMILY_CM, number);
        EXPECT(strcmp(found.text, bw_cm_event_str((uint32_t)number)) == 0);
        EXPECT(strcmp(found.name, bw_cm_event_name((uint32_t)number)) == 0);
    }
    for (number = -140; number <= 140; number++)
        of(BW_FAMILY_ERRNO, number);

    /* What no table has. */
    for (at = 0; at < sizeof numbers / sizeof numbers[0]; at++) {
        found = of(BW_FAMILY_STATUS, numbers[at]);
        EXPECT(strcmp(found.name, "GENERAL_ERR") == 0 && found.recovery == BW_RECOVERY_RESET_QP);
        found = of(BW_FAMILY_EVENT, numbers[at]);
        EXPECT(strcmp(found.name, "UNKNOWN") == 0 && found.recovery == BW_RECOVERY_NONE);
        found = of(BW_FAMILY_CM, numbers[at]);
        EXPECT(strcmp(found.name, "UNKNOWN") == 0 && found.recovery == BW_RECOVERY_NONE);
    }
    EXPECT(strcmp(of(BW_FAMILY_ERRNO, INT_MIN).name, "UNKNOWN") == 0);
    EXPECT(strcmp(bw_wc_status_name(BW_WC_RETRY_EXC_ERR), "RETRY_EXC_ERR") == 0);
    EXPECT(strcmp(bw_wc_status_name(24), "UNKNOWN") == 0);
    EXPECT(strcmp(bw_event_type_name(99), "UNKNOWN") == 0);
    EXPECT(strcmp(bw_cm_event_name(16), "UNKNOWN") == 0);
    EXPECT(strcmp(bw_scope_name(BW_SCOPE_QP), "QP") == 0);
    EXPECT(strcmp(bw_blame_name(BW_BLAME_LOCAL_PROGRAM), "LOCAL_PROGRAM") == 0);
    EXPECT(strcmp(bw_retry_name(BW_RETRY_NEVER), "NEVER") == 0);
    EXPECT(strcmp(bw_execution_name(BW_EXECUTION_NOT_EXECUTED), "NOT_EXECUTED") == 0);
    EXPECT(strcmp(bw_recovery_name(BW_RECOVERY_RESET_QP), "RESET_QP") == 0);
    EXPECT(strcmp(bw_recovery_name(UINT32_MAX), "UNKNOWN") == 0);
    EXPECT(strncmp(bw_wc_status_str(24), "not ", 4) == 0);
    EXPECT(strncmp(bw_cm_event_str(16), "not ", 4) == 0);
    EXPECT(strncmp(bw_recovery_str(UINT32_MAX), "not ", 4) == 0);

    /* A status depends on transport, queue, operation and vendor. */
    what = fault(BW_FAMILY_STATUS, BW_WC_LOC_PROT_ERR);
    found = classified(&what);
    EXPECT(found.recovery == BW_RECOVERY_RESET_QP && found.execution == BW_EXECUTION_UNKNOWN);
    what.has_opcode = 1;
    what.opcode = BW_WR_SEND;
    EXPECT(classified(&what).execution == BW_EXECUTION_NOT_EXECUTED);
    what.transport = BW_QPT_UD;
    EXPECT(classified(&what).recovery == BW_RECOVERY_SQE_TO_RTS);
    what.queue = BW_QUEUE_RECV;
    EXPECT(classified(&what).recovery == BW_RECOVERY_RESET_QP);
    what = fault(BW_FAMILY_STATUS, BW_WC_REM_ABORT_ERR);
    what.queue = BW_QUEUE_SRQ;
    what.vendor_err = 0x93;
    EXPECT(classified(&what).scope == BW_SCOPE_QP);
    what.vendor = BW_VENDOR_CONNECTX;
    EXPECT(classified(&what).scope == BW_SCOPE_REQUEST);

    found = of(BW_FAMILY_EVENT, BW_EVENT_CQ_ERR);
    EXPECT(found.scope == BW_SCOPE_CQ && found.recovery == BW_RECOVERY_REBUILD_CQ);
    found = of(BW_FAMILY_CM, BW_CM_EVENT_DEVICE_REMOVAL);
    EXPECT(found.scope == BW_SCOPE_DEVICE && found.recovery == BW_RECOVERY_DESTROY_ID);

    /* The numbers of this system's errno.h. */
    EXPECT(strcmp(of(BW_FAMILY_ERRNO, EPERM).name, "EPERM") == 0);
    EXPECT(strcmp(of(BW_FAMILY_ERRNO, EIO).name, "EIO") == 0);
    EXPECT(strcmp(of(BW_FAMILY_ERRNO, -ENOMEM).name, "ENOMEM") == 0);
    EXPECT(strcmp(of(BW_FAMILY_ERRNO, EOPNOTSUPP).name, "EOPNOTSUPP") == 0);
    EXPECT(strcmp(of(BW_FAMILY_ERRNO, -ETIMEDOUT).name, "ETIMEDOUT") == 0);

    EXPECT(strcmp(of(BW_FAMILY_LINK, BW_DEADLINE_MISSED).name, "DEADLINE_MISSED") == 0);
    EXPECT(strcmp(of(BW_FAMILY_LINK, BW_KEEP_ALIVE_MISSED).name, "KEEP_ALIVE_MISSED") == 0);
    EXPECT(strcmp(of(BW_FAMILY_LINK, BW_CANCELLED).name, "CANCELLED") == 0);

    /* A completion as it is. */
    bw_wc wc;
    bw_class same;
    memset(&wc, 0, sizeof wc);
    wc.status = BW_WC_REM_ACCESS_ERR;
    memset(&same, 0, sizeof same);
    same.size = sizeof same;
    OK(bw_classify_wc(&wc, BW_QPT_RC, BW_QUEUE_SEND, &same));
    found = of(BW_FAMILY_STATUS, BW_WC_REM_ACCESS_ERR);
    EXPECT(memcmp(&same, &found, sizeof same) == 0);
    OK(bw_classify_wc(&wc, BW_QPT_RC, BW_QUEUE_RECV, &same));
    EXPECT(same.execution == BW_EXECUTION_NOT_APPLICABLE);
    EXPECT(bw_classify_wc(&wc, 0, BW_QUEUE_SEND, &same) == BW_EINVAL);
    EXPECT(bw_classify_wc(&wc, BW_QPT_RC, BW_QUEUE_SRQ + 1, &same) == BW_EINVAL);
    EXPECT(bw_classify_wc(&wc, BW_QPT_RC, BW_QUEUE_SEND, NULL) == BW_ENULL);

    what = fault(BW_FAMILY_PEER, BW_PEER_GAVE_UP);
    what.named_family = BW_FAMILY_LINK;
    what.named_number = BW_RECV_LIMIT_EXCEEDED;
    EXPECT(strcmp(classified(&what).name, "PEER_GAVE_UP") == 0);

    /* What cannot be. */
    what.named_number = BW_CANCELLED + 1;
    refused(&what, BW_EINVAL);
    what.named_family = BW_FAMILY_LINK + 1;
    refused(&what, BW_EINVAL);
    what = fault(BW_FAMILY_PEER, BW_PEER_GAVE_UP + 1);
    refused(&what, BW_EINVAL);
    what = fault(BW_FAMILY_LINK + 1, 0);
    refused(&what, BW_EINVAL);
    found = of(BW_FAMILY_LINK, BW_RECV_LIMIT_EXCEEDED);
    EXPECT(strcmp(found.name, "RECV_LIMIT_EXCEEDED") == 0);
    EXPECT(found.recovery == BW_RECOVERY_CLOSE_LINK);
    what = fault(BW_FAMILY_LINK, BW_CANCELLED + 1);
    refused(&what, BW_EINVAL);
    what = fault(BW_FAMILY_STATUS, 0);
    what.transport = 0;
    refused(&what, BW_EINVAL);
    what = fault(BW_FAMILY_STATUS, 0);
    what.queue = 3;
    refused(&what, BW_EINVAL);
    what = fault(BW_FAMILY_STATUS, 0);
    what.has_opcode = 2;
    refused(&what, BW_EINVAL);
    what.has_opcode = 1;
    what.opcode = 12;
    refused(&what, BW_EINVAL);
    what = fault(BW_FAMILY_STATUS, 0);
    what.vendor = 2;
    refused(&what, BW_EINVAL);
    what = fault(BW_FAMILY_EVENT, 0);
    what.size = 0;
    refused(&what, BW_ESIZE);
    refused(NULL, BW_ENULL);
    what.size = sizeof what;
    EXPECT(bw_classify(&what, NULL) == BW_ENULL);
    found.size = 1;
    EXPECT(bw_classify(&what, &found) == BW_ESIZE);
    return 0;
}
