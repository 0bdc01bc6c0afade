/* A library that opens a file before main, and before the shim is ready. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void early(void) {
    const char *path = getenv("PROBE_EARLY");
    char bytes[7] = {0};
    int descriptor = path ? open(path, O_RDONLY) : -1;
    if (descriptor >= 0 && read(descriptor, bytes, 6) == 6) {
        dprintf(1, "early '%s'\n", bytes);
        close(descriptor);
    }
}
