/* A stand-in for a library of another ABI. */
#include <bellwire.h>

uint32_t bw_version(void)
{
    return STAND_IN;
}

/* A program that had this one by mistake would say so. */
int bw_device_open(const char *name, struct bw_device **device)
{
    (void)name;
    (void)device;
    return BW_EINTERNAL;
}
