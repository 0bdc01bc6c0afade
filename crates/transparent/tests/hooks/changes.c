/* Calls every function that changes a file, each on its own files: NAME below the dataset by an
 * absolute path, NAME.relative from the working directory, which is `sub`. */
#include "probe.h"

typedef const char *path;

static const struct timespec spec[2] = {{1000, 5000}, {2000, 7000}};
static const struct timeval val[2] = {{1000, 5}, {2000, 7}};
static const struct utimbuf buffer = {1000, 2000};

/* Prints the file's state without its inode, which differs from tree to tree. */
static void show_file(path file) {
    struct stat stat;
    int descriptor = open(file, O_RDONLY);
    printf(" open %d", descriptor >= 0);
    if (descriptor >= 0) {
        show_bytes(descriptor);
        fstat(descriptor, &stat);
        printf(" mode %o size %ld", stat.st_mode, (long)stat.st_size);
        if (stat.st_mtim.tv_sec == 2000)
            printf(" m %ld.%ld", stat.st_mtim.tv_sec, stat.st_mtim.tv_nsec);
        close(descriptor);
    }
    if (lstat(file, &stat) == 0)
        printf(" lstat mode %o size %ld uid %u", stat.st_mode, (long)stat.st_size, stat.st_uid);
    printf("\n");
}

static int write_and_close(int descriptor) {
    if (descriptor >= 0) {
        if (write(descriptor, "WRITTEN", 7) < 0)
            printf(" not written");
        close(descriptor);
    }
    return descriptor >= 0;
}

static int write_stream(FILE *stream) {
    if (stream) {
        fputs("WRITTEN", stream);
        fclose(stream);
    }
    return stream != NULL;
}

static long by_path(const char *name, path file) {
    void *f = function(name);
    static char target[PATH_MAX + 16];
    snprintf(target, sizeof target, "%s.renamed", file);
#define IS(text) (strcmp(name, text) == 0)
    if (IS("open") || IS("open64"))
        return write_and_close(((int (*)(path, int, ...))f)(file, O_WRONLY, 0));
    if (IS("__open_2") || IS("__open64_2"))
        return write_and_close(((int (*)(path, int))f)(file, O_RDWR));
    if (IS("openat") || IS("openat64"))
        return write_and_close(((int (*)(int, path, int, ...))f)(AT_FDCWD, file, O_RDWR | O_APPEND | O_CREAT, 0600));
    if (IS("__openat_2") || IS("__openat64_2"))
        return close(((int (*)(int, path, int))f)(AT_FDCWD, file, O_RDONLY | O_TRUNC));
    if (IS("creat") || IS("creat64"))
        return write_and_close(((int (*)(path, mode_t))f)(file, 0600));
    if (IS("fopen"))
        return write_stream(((FILE * (*)(path, path)) f)(file, "r+"));
    if (IS("fopen64"))
        return write_stream(((FILE * (*)(path, path)) f)(file, "ab"));
    if (IS("freopen"))
        return write_stream(((FILE * (*)(path, path, FILE *)) f)(file, "w", fopen("/dev/null", "r")));
    if (IS("freopen64")) /* the same file again, which was a copy */
        return write_stream(((FILE * (*)(path, path, FILE *)) f)(NULL, "r+", fopen(file, "r")));
    if (IS("truncate") || IS("truncate64"))
        return ((int (*)(path, off_t))f)(file, 3);
    if (IS("unlink") || IS("remove"))
        return ((int (*)(path))f)(file);
    if (IS("unlinkat"))
        return ((int (*)(int, path, int))f)(AT_FDCWD, file, 0);
    if (IS("rename"))
        return ((int (*)(path, path))f)(file, target);
    if (IS("renameat"))
        return ((int (*)(int, path, int, path))f)(AT_FDCWD, file, AT_FDCWD, target);
    if (IS("renameat2"))
        return ((int (*)(int, path, int, path, unsigned))f)(AT_FDCWD, file, AT_FDCWD, target, 0);
    if (IS("linkat") && file[0] != '/') /* the tree has a file named link already */
        return ((int (*)(path, path))function("link"))(file, target);
    if (IS("linkat"))
        return ((int (*)(int, path, int, path, int))f)(AT_FDCWD, file, AT_FDCWD, target, 0);
    if (IS("chmod"))
        return ((int (*)(path, mode_t))f)(file, 0640);
    if (IS("fchmodat"))
        return ((int (*)(int, path, mode_t, int))f)(AT_FDCWD, file, 0640, 0);
    if (IS("chown") || IS("lchown"))
        return ((int (*)(path, uid_t, gid_t))f)(file, getuid(), getgid());
    if (IS("fchownat"))
        return ((int (*)(int, path, uid_t, gid_t, int))f)(AT_FDCWD, file, getuid(), getgid(), 0);
    if (IS("utime"))
        return ((int (*)(path, const struct utimbuf *))f)(file, &buffer);
    if (IS("utimes") || IS("lutimes"))
        return ((int (*)(path, const struct timeval *))f)(file, val);
    if (IS("futimesat"))
        return ((int (*)(int, path, const struct timeval *))f)(AT_FDCWD, file, val);
    if (IS("utimensat"))
        return ((int (*)(int, path, const struct timespec *, int))f)(AT_FDCWD, file, spec, 0);
    if (IS("setxattr") || IS("lsetxattr"))
        return ((int (*)(path, path, const void *, size_t, int))f)(file, "user.probe", "1", 1, 0);
    if (IS("removexattr") || IS("lremovexattr")) {
        syscall(SYS_setxattr, file, "user.probe", "1", 1L, 0);
        errno = MARK;
        return ((int (*)(path, path))f)(file, "user.probe");
    }
    printf("what is %s?\n", name);
    exit(3);
}

static long by_descriptor(const char *name, path file) {
    void *f = function(name);
    int descriptor = open(file, O_RDONLY), result;
    show_bytes(descriptor);
    errno = MARK;
    if (IS("fchmod"))
        result = ((int (*)(int, mode_t))f)(descriptor, 0640);
    else if (IS("fchown"))
        result = ((int (*)(int, uid_t, gid_t))f)(descriptor, getuid(), getgid());
    else if (IS("futimes"))
        result = ((int (*)(int, const struct timeval *))f)(descriptor, val);
    else if (IS("futimens"))
        result = ((int (*)(int, const struct timespec *))f)(descriptor, spec);
    else if (IS("utimensat"))
        result = ((int (*)(int, path, const struct timespec *, int))f)(descriptor, "", spec, AT_EMPTY_PATH);
    else if (IS("futimesat"))
        result = ((int (*)(int, path, const struct timeval *))f)(descriptor, NULL, val);
    else if (IS("fchownat"))
        result = ((int (*)(int, path, uid_t, gid_t, int))f)(descriptor, "", getuid(), getgid(), AT_EMPTY_PATH);
    else if (IS("fchmodat"))
        result = ((int (*)(int, path, mode_t, int))f)(descriptor, "", 0640, AT_EMPTY_PATH);
    else if (IS("fsetxattr"))
        result = ((int (*)(int, path, const void *, size_t, int))f)(descriptor, "user.probe", "1", 1, 0);
    else {
        syscall(SYS_setxattr, file, "user.probe", "1", 1L, 0);
        errno = MARK;
        result = ((int (*)(int, path))f)(descriptor, "user.probe");
    }
    int error = errno;
    struct stat stat;
    fstat(descriptor, &stat);
    printf(" fstat mode %o size %ld", stat.st_mode, (long)stat.st_size);
    close(descriptor);
    errno = error;
    return result;
}

void changes(void) {
    static const char *const paths[] = {
        "open", "open64", "__open_2", "__open64_2", "openat", "openat64", "__openat_2", "__openat64_2",
        "creat", "creat64", "fopen", "fopen64", "freopen", "freopen64", "truncate", "truncate64", "unlink",
        "remove", "unlinkat", "rename", "renameat", "renameat2", "linkat", "chmod", "fchmodat", "chown", "lchown",
        "fchownat", "utime", "utimes", "lutimes", "futimesat", "utimensat", "setxattr", "lsetxattr",
        "removexattr", "lremovexattr"};
    static const char *const descriptors[] = {"fchmod", "fchown", "futimes", "futimens", "utimensat",
                                              "futimesat", "fchownat", "fchmodat", "fsetxattr", "fremovexattr"};
    char file[PATH_MAX];
    for (unsigned i = 0; i < LENGTH(paths); i++)
        for (int relative = 0; relative < 2; relative++) {
            snprintf(file, sizeof file, relative ? "%s.relative" : "%s", paths[i]);
            path whole = relative ? file : below(file);
            printf("before:");
            show_file(whole);
            errno = MARK;
            show_result(paths[i], relative ? "relative" : "absolute", by_path(paths[i], whole));
            show_file(whole);
        }
    for (unsigned i = 0; i < LENGTH(descriptors); i++) {
        snprintf(file, sizeof file, "%s.descriptor", descriptors[i]);
        show_result(descriptors[i], "descriptor", by_descriptor(descriptors[i], below(file)));
        show_file(below(file));
    }
}
