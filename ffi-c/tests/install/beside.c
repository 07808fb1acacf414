/* Both of two static libraries in Rust work in one program. */
#include <bellwire.h>

int other_works(void);

int main(void)
{
    bw_device *device;

    if (!other_works() || bw_device_open("soft", &device) != BW_OK)
        return 1;
    return bw_device_close(device) == BW_OK && other_works() ? 0 : 2;
}
