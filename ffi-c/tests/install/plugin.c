/*
 * A plug-in has the library that it was linked with, whatever library its program has. Compiled as the
 * plug-in, as the program (PROGRAM), and for both as linked with a stand-in for a library of another
 * ABI, whose bw_version() is STAND_IN.
 */
#include <bellwire.h>

int works(void);

int works(void)
{
#ifdef STAND_IN
    return bw_version() == STAND_IN;
#else
    bw_device *device;

    return bw_version() == BW_VERSION && bw_device_open("soft", &device) == BW_OK &&
           bw_device_close(device) == BW_OK;
#endif
}

#ifdef PROGRAM
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    void *plugin = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = plugin ? dlsym(plugin, "works") : NULL;
    int (*plugin_works)(void);

    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    memcpy(&plugin_works, &symbol, sizeof symbol);
    if (!works() || !plugin_works()) {
        fprintf(stderr, "program: %d, plug-in: %d\n", works(), plugin_works());
        return 2;
    }
    return 0;
}
#endif
