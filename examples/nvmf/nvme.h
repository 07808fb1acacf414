/*
 * The numbers and layouts of NVMe 1.4 and NVMe over Fabrics 1.1 that the target and the host use.
 * Everything on the wire is little-endian and has no alignment: fields are read and written by the
 * functions at the end, by the offsets that the specifications give.
 */
#ifndef NVME_H
#define NVME_H

#include <stdint.h>
#include <string.h>

#define DISCOVERY_NQN "nqn.2014-08.org.nvmexpress.discovery"

enum {
    NQN_MAX = 223,     /* characters */
    NQN_FIELD = 256,   /* bytes of a field that holds one */
    SQE = 64,          /* bytes of a command */
    CQE = 16,          /* bytes of a response */
    PAGE = 4096,       /* bytes of a memory page, and of what Identify returns */
    CONNECT_DATA = 1024,
    ANY_CONTROLLER = 0xffff,
};

#define ALL_NAMESPACES UINT32_C(0xffffffff)

/* Where a command has its fields. */
enum {
    SQE_OPCODE = 0,
    SQE_FLAGS = 1,
    SQE_CID = 2,
    SQE_NSID = 4,
    SQE_FCTYPE = 4, /* fabrics commands: the type */
    SQE_SGL_ADDR = 24,
    SQE_SGL_LENGTH = 32,
    SQE_SGL_KEY = 35,
    SQE_SGL_TYPE = 39,
    SQE_CDW10 = 40,
    SQE_CDW11 = 44,
    SQE_CDW12 = 48,
    SQE_CDW13 = 52,
    SQE_CDW14 = 56,
};

enum {
    FLAGS_FUSED = 0x03,
    FLAGS_PSDT = 0xc0,
    FLAGS_SGL = 0x40, /* the only kind of data pointer over fabrics */
};

/* Types of a data pointer: descriptor and subtype. */
enum {
    SGL_IN_CAPSULE = 0x01,
    SGL_KEYED = 0x40,
    SGL_KEYED_INVALIDATE = 0x4f, /* the target invalidates the key with its response */
};

/* Where a response has its fields. */
enum { CQE_RESULT = 0, CQE_SQHD = 8, CQE_SQID = 10, CQE_CID = 12, CQE_STATUS = 14 };

enum {
    ADMIN_GET_LOG = 0x02,
    ADMIN_IDENTIFY = 0x06,
    ADMIN_ABORT = 0x08,
    ADMIN_SET_FEATURES = 0x09,
    ADMIN_GET_FEATURES = 0x0a,
    ADMIN_ASYNC_EVENT = 0x0c,
    ADMIN_KEEP_ALIVE = 0x18,
    FABRICS = 0x7f,
};
enum { FABRICS_PROPERTY_SET = 0, FABRICS_CONNECT = 1, FABRICS_PROPERTY_GET = 4, FABRICS_DISCONNECT = 8 };
enum {
    IO_CMD_FLUSH = 0x00,
    IO_CMD_WRITE = 0x01,
    IO_CMD_READ = 0x02,
    IO_CMD_COMPARE = 0x05,
    IO_CMD_WRITE_ZEROES = 0x08,
    IO_CMD_DATASET = 0x09,
};

/* Properties: the registers of a controller. */
enum { PROPERTY_CAP = 0x00, PROPERTY_VS = 0x08, PROPERTY_CC = 0x14, PROPERTY_CSTS = 0x1c };
enum { CC_ENABLE = 1u << 0, CC_SHUTDOWN = 3u << 14, CC_SETTINGS = 0x3ff0 };
enum { CSTS_READY = 1u << 0, CSTS_SHUTDOWN_DONE = 2u << 2 };

/* Status codes: the type in the upper byte. */
enum {
    OK = 0x000,
    INVALID_OPCODE = 0x001,
    INVALID_FIELD = 0x002,
    DATA_TRANSFER_ERROR = 0x004,
    INTERNAL_ERROR = 0x006,
    ABORT_REQUESTED = 0x007,
    KEEP_ALIVE_INVALID = 0x01a,
    INVALID_NAMESPACE = 0x00b,
    COMMAND_SEQUENCE_ERROR = 0x00c,
    DATA_SGL_LENGTH_INVALID = 0x00f,
    SGL_TYPE_INVALID = 0x011,
    SGL_OFFSET_INVALID = 0x016,
    LBA_OUT_OF_RANGE = 0x080,
    CAPACITY_EXCEEDED = 0x081,
    NAMESPACE_NOT_READY = 0x082,
    ASYNC_EVENT_LIMIT = 0x105,
    INVALID_LOG_PAGE = 0x109,
    FEATURE_NOT_SAVEABLE = 0x10d,
    FEATURE_NOT_CHANGEABLE = 0x10e,
    CONNECT_INCOMPATIBLE = 0x180,
    CONNECT_BUSY = 0x181,
    CONNECT_INVALID = 0x182,
    CONNECT_INVALID_HOST = 0x184,
    INVALID_QUEUE_TYPE = 0x185,
    WRITE_FAULT = 0x280,
    UNRECOVERED_READ_ERROR = 0x281,
    COMPARE_FAILURE = 0x285,
    DO_NOT_RETRY = 0x4000,
};

/* What RDMA adds: private data of a request to connect, and why it is rejected. */
enum { CM_REQUEST = 32, CM_REPLY = 32, CM_REJECT = 4 };
enum {
    CM_INVALID_LENGTH = 1,
    CM_INVALID_FORMAT = 2,
    CM_INVALID_QID = 3,
    CM_INVALID_HSQSIZE = 4,
    CM_INVALID_HRQSIZE = 5,
    CM_NO_RESOURCES = 6,
    CM_INVALID_IRD = 7,
};

static inline uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}
static inline uint32_t get24(const uint8_t *at)
{
    return get16(at) | (uint32_t)at[2] << 16;
}
static inline uint32_t get32(const uint8_t *at)
{
    return get16(at) | (uint32_t)get16(at + 2) << 16;
}
static inline uint64_t get64(const uint8_t *at)
{
    return get32(at) | (uint64_t)get32(at + 4) << 32;
}
static inline void put16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}
static inline void put24(uint8_t *at, uint32_t value)
{
    put16(at, (uint16_t)value);
    at[2] = (uint8_t)(value >> 16);
}
static inline void put32(uint8_t *at, uint32_t value)
{
    put16(at, (uint16_t)value);
    put16(at + 2, (uint16_t)(value >> 16));
}
static inline void put64(uint8_t *at, uint64_t value)
{
    put32(at, (uint32_t)value);
    put32(at + 4, (uint32_t)(value >> 32));
}

/* Text in a field of `size` bytes, filled with spaces. */
static inline void put_text(uint8_t *at, const char *text, size_t size)
{
    size_t length = strlen(text);

    memset(at, ' ', size);
    memcpy(at, text, length < size ? length : size);
}

#endif
