#include "probe.h"

const char *root, *real_root;

void *function(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        printf("there is no %s\n", name);
        exit(3);
    }
    return found;
}

const char *below(const char *name) {
    static char places[8][PATH_MAX];
    static unsigned turn;
    char *place = places[turn++ % 8];
    snprintf(place, PATH_MAX, "%s/%s", root, name);
    return place;
}

void show_result(const char *function, const char *label, long result) {
    int error = errno;
    printf("%s %s = %ld errno %d", function, label, result, error);
}

void show_bytes(int descriptor) {
    char bytes[17] = {0};
    long count = read(descriptor, bytes, 16);
    printf(" read %ld '%s'", count, count > 0 ? bytes : "");
}

void show_stat(const struct stat *s) {
    printf(" dev %lx ino %lu mode %o links %lu uid %u gid %u rdev %lu size %ld block %ld blocks %ld"
           " a %ld.%ld m %ld.%ld c %ld.%ld",
           (long)s->st_dev, (long)s->st_ino, s->st_mode, (long)s->st_nlink, s->st_uid, s->st_gid,
           (long)s->st_rdev, (long)s->st_size, (long)s->st_blksize, (long)s->st_blocks,
           s->st_atim.tv_sec, s->st_atim.tv_nsec, s->st_mtim.tv_sec, s->st_mtim.tv_nsec,
           s->st_ctim.tv_sec, s->st_ctim.tv_nsec);
}

void show_descriptor(int descriptor) {
    struct stat stat;
    printf(" flags %o cloexec %d at %ld", fcntl(descriptor, F_GETFL), fcntl(descriptor, F_GETFD),
           (long)lseek(descriptor, 0, SEEK_CUR));
    if (fstat(descriptor, &stat) == 0)
        show_stat(&stat);
    show_bytes(descriptor);
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    root = arguments[1];
    real_root = arguments[2];
    if (chdir(below("sub")) != 0)
        return 2;
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (!strcmp(arguments[3], "reads"))
        reads();
    else if (!strcmp(arguments[3], "changes"))
        changes();
    else
        special(arguments[3]);
    return 0;
}
