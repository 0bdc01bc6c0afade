/* Calls every function that opens a file for reading or returns its stat, with every kind of name. */
#include "probe.h"

enum { HERE = AT_FDCWD, TOP = -2, FILE_ = -3, CLOSED = 900 };

struct name {
    const char *label;
    int at;
    const char *path;
};

static struct name names[64];
static unsigned count;
static int top, file;

static void name(const char *label, int at, const char *path) {
    names[count++] = (struct name){label, at == TOP ? top : at == FILE_ ? file : at, path};
}

static const char *joined(const char *directory, const char *rest) {
    char *text = malloc(PATH_MAX);
    snprintf(text, PATH_MAX, "%s%s", directory, rest);
    return text;
}

static void make_names(void) {
    static char slashes[PATH_MAX + 1000];
    top = open(root, O_RDONLY | O_DIRECTORY);
    file = open(below("nocopy"), O_RDONLY);
    name("given", HERE, joined(root, "/plain"));
    name("real", HERE, joined(real_root, "/plain"));
    name("slashes", HERE, joined(root, "//.//plain"));
    name("deep", HERE, joined(root, "/sub/deep"));
    name("cwd", HERE, "deep");
    name("cwd-dot", HERE, "./deep");
    name("cwd-up", HERE, "../plain");
    name("cwd-up-link", HERE, "../link");
    name("odd", HERE, joined(root, "/sub/../plain"));
    name("link", HERE, joined(root, "/link"));
    name("link-directory", HERE, joined(root, "/sublink/deep"));
    name("trailing", HERE, joined(root, "/plain/"));
    name("trailing-dot", HERE, joined(root, "/plain/."));
    name("below-file", HERE, joined(root, "/plain/x"));
    name("missing", HERE, joined(root, "/none"));
    name("directory", HERE, joined(root, "/sub"));
    name("root", HERE, root);
    name("dot", HERE, ".");
    name("empty", HERE, "");
    name("nocopy", HERE, joined(root, "/nocopy"));
    name("elsewhere", HERE, "/dev/null");
    name("neighbour", HERE, joined(real_root, "-neighbour/plain"));
    name("looping", HERE, joined(root, "/loop"));
    memset(slashes, 'x', sizeof slashes - 1);
    memcpy(slashes, root, strlen(root));
    slashes[strlen(root)] = '/';
    name("too-long", HERE, slashes);
    name("null", HERE, NULL);
    name("wild", HERE, (const char *)-1);
    name("first-page", HERE, (const char *)8);
    /* From here on, only for functions that take a directory. */
    name("at", TOP, "plain");
    name("at-deep", TOP, "sub/./deep");
    name("at-link", TOP, "link");
    name("at-absolute", TOP, joined(root, "/plain"));
    name("at-missing", TOP, "none");
    name("closed", CLOSED, "plain");
    name("closed-absolute", CLOSED, joined(root, "/plain"));
    name("minus-one", -1, "plain");
    name("file", FILE_, "plain");
}

/* libc itself crashes when it reads a stream's path or mode. */
static int is_pointer(const struct name *n) {
    return n->path && n->path != (const char *)-1 && n->path != (const char *)8;
}

static void open_(const char *called, int takes_at, int takes_mode, int flags, const struct name *n) {
    char label[64];
    void *f = function(called);
    snprintf(label, sizeof label, "%s %o", n->label, flags);
    errno = MARK;
    int result;
    if (takes_at)
        result = takes_mode ? ((int (*)(int, const char *, int, ...))f)(n->at, n->path, flags, 0600)
                            : ((int (*)(int, const char *, int))f)(n->at, n->path, flags);
    else
        result = takes_mode ? ((int (*)(const char *, int, ...))f)(n->path, flags, 0600)
                            : ((int (*)(const char *, int))f)(n->path, flags);
    show_result(called, label, result);
    if (result >= 0) {
        show_descriptor(result);
        close(result);
    }
    printf("\n");
}

static void opens(void) {
    static const struct {
        const char *name;
        int takes_at, takes_mode;
    } functions[] = {
        {"open", 0, 1},     {"open64", 0, 1},     {"openat", 1, 1},     {"openat64", 1, 1},
        {"__open_2", 0, 0}, {"__open64_2", 0, 0}, {"__openat_2", 1, 0}, {"__openat64_2", 1, 0},
    };
    static const int flags[] = {O_RDONLY,   O_CLOEXEC,  O_NOFOLLOW, O_DIRECTORY,
                                O_PATH,     O_NONBLOCK | O_NOATIME, O_CLOEXEC | O_NOCTTY | O_SYNC};
    for (unsigned f = 0; f < LENGTH(functions); f++)
        for (unsigned i = 0; i < LENGTH(flags); i++)
            for (unsigned n = 0; n < count; n++)
                if (functions[f].takes_at || names[n].at == HERE)
                    open_(functions[f].name, functions[f].takes_at, functions[f].takes_mode, flags[i], &names[n]);
}

static void streams(void) {
    static const char *const functions[] = {"fopen", "fopen64", "freopen", "freopen64"};
    static const char *const modes[] = {"r", "rb", "re", "rm", "rbe", "q", ""};
    for (unsigned f = 0; f < LENGTH(functions); f++)
        for (unsigned m = 0; m < LENGTH(modes); m++)
            for (unsigned n = 0; n < count; n++) {
                char label[64];
                FILE *stream;
                if (names[n].at != HERE || !is_pointer(&names[n]))
                    continue;
                snprintf(label, sizeof label, "%s '%s'", names[n].label, modes[m]);
                if (f < 2) {
                    errno = MARK;
                    stream = ((FILE * (*)(const char *, const char *)) function(functions[f]))(names[n].path, modes[m]);
                } else {
                    FILE *old = fopen("/dev/zero", "r");
                    errno = MARK;
                    stream = ((FILE * (*)(const char *, const char *, FILE *)) function(functions[f]))(names[n].path, modes[m], old);
                }
                show_result(functions[f], label, stream != NULL);
                if (stream) {
                    char bytes[17] = {0};
                    printf(" descriptor %d", fileno(stream));
                    long got = fread(bytes, 1, 6, stream);
                    printf(" got %ld '%s' told %ld", got, bytes, ftell(stream));
                    rewind(stream);
                    fflush(stream);
                    show_descriptor(fileno(stream));
                    fclose(stream);
                }
                printf("\n");
            }
}

static void stats(void) {
    static const struct {
        const char *name;
        int takes_version, takes_at;
    } functions[] = {
        {"stat", 0, 0},    {"stat64", 0, 0},    {"lstat", 0, 0},    {"lstat64", 0, 0},
        {"fstatat", 0, 1}, {"fstatat64", 0, 1}, {"__xstat", 1, 0},  {"__xstat64", 1, 0},
        {"__lxstat", 1, 0}, {"__lxstat64", 1, 0}, {"__fxstatat", 1, 1}, {"__fxstatat64", 1, 1},
    };
    static const int flags[] = {0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_NO_AUTOMOUNT, 0x40000000};
    for (unsigned f = 0; f < LENGTH(functions); f++)
        for (unsigned n = 0; n < count; n++)
            for (unsigned v = 0; v < (functions[f].takes_version ? 3 : 1); v++)
                for (unsigned i = 0; i < (functions[f].takes_at ? LENGTH(flags) : 1); i++) {
                    const struct name *name = &names[n];
                    void *called = function(functions[f].name);
                    struct stat stat;
                    char label[64];
                    int result;
                    memset(&stat, 0x55, sizeof stat);
                    if (name->at != HERE && !functions[f].takes_at)
                        continue;
                    snprintf(label, sizeof label, "%s version %u flags %x", name->label, v, flags[i]);
                    errno = MARK;
                    if (functions[f].takes_at && functions[f].takes_version)
                        result = ((int (*)(int, int, const char *, struct stat *, int))called)(v, name->at, name->path, &stat, flags[i]);
                    else if (functions[f].takes_at)
                        result = ((int (*)(int, const char *, struct stat *, int))called)(name->at, name->path, &stat, flags[i]);
                    else if (functions[f].takes_version)
                        result = ((int (*)(int, const char *, struct stat *))called)(v, name->path, &stat);
                    else
                        result = ((int (*)(const char *, struct stat *))called)(name->path, &stat);
                    show_result(functions[f].name, label, result);
                    if (result == 0)
                        show_stat(&stat);
                    printf("\n");
                }
    for (unsigned n = 0; n < count; n++) {
        errno = MARK;
        show_result("stat", "nowhere", ((int (*)(const char *, struct stat *))function("stat"))(names[n].path, NULL));
        printf("\n");
    }
}

static void descriptor_stats(void) {
    static const char *const functions[] = {"fstat", "fstat64", "__fxstat", "__fxstat64"};
    static const char *const files[] = {"plain", "nocopy", "sub", "link"};
    for (unsigned f = 0; f < LENGTH(functions); f++)
        for (unsigned i = 0; i <= LENGTH(files); i++) {
            struct stat stat;
            int result, descriptor = i < LENGTH(files) ? open(below(files[i]), O_RDONLY) : CLOSED;
            errno = MARK;
            if (f < 2)
                result = ((int (*)(int, struct stat *))function(functions[f]))(descriptor, &stat);
            else
                result = ((int (*)(int, int, struct stat *))function(functions[f]))(1, descriptor, &stat);
            show_result(functions[f], i < LENGTH(files) ? files[i] : "closed", result);
            if (result == 0)
                show_stat(&stat);
            printf("\n");
            close(descriptor);
        }
}

/* A file system may return more fields than requested. */
static void show_statx(const struct statx *s, unsigned asked) {
    if ((asked & STATX_BASIC_STATS) != STATX_BASIC_STATS) {
        printf(" mask %x size %llu", s->stx_mask & asked & 0xfff, s->stx_size);
        return;
    }
    printf(" mask %x block %u attributes %llx of %llx links %u uid %u gid %u mode %o ino %llu size %llu"
           " blocks %llu dev %u %u rdev %u %u a %lld.%u m %lld.%u c %lld.%u b %lld.%u",
           s->stx_mask & 0xfff, s->stx_blksize, s->stx_attributes, s->stx_attributes_mask, s->stx_nlink,
           s->stx_uid, s->stx_gid, s->stx_mode, s->stx_ino, s->stx_size, s->stx_blocks, s->stx_dev_major,
           s->stx_dev_minor, s->stx_rdev_major, s->stx_rdev_minor, s->stx_atime.tv_sec, s->stx_atime.tv_nsec,
           s->stx_mtime.tv_sec, s->stx_mtime.tv_nsec, s->stx_ctime.tv_sec, s->stx_ctime.tv_nsec,
           s->stx_mask & STATX_BTIME ? s->stx_btime.tv_sec : 0, s->stx_mask & STATX_BTIME ? s->stx_btime.tv_nsec : 0);
}

static void statxs(void) {
    static const int flags[] = {0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_STATX_FORCE_SYNC, AT_STATX_DONT_SYNC, 0x40000000};
    static const unsigned masks[] = {STATX_BASIC_STATS, STATX_BASIC_STATS | STATX_BTIME, STATX_SIZE, 0x1000, 0x80000000u};
    int (*called)(int, const char *, int, unsigned, struct statx *) = function("statx");
    int copy = open(below("plain"), O_RDONLY);
    name("descriptor", copy, "");
    for (unsigned n = 0; n < count; n++)
        for (unsigned i = 0; i < LENGTH(flags); i++)
            for (unsigned m = 0; m < LENGTH(masks); m++) {
                struct statx out;
                char label[64];
                memset(&out, 0x55, sizeof out);
                snprintf(label, sizeof label, "%s flags %x mask %x", names[n].label, flags[i], masks[m]);
                errno = MARK;
                int result = called(names[n].at, names[n].path, flags[i], masks[m], &out);
                show_result("statx", label, result);
                if (result == 0)
                    show_statx(&out, masks[m]);
                printf("\n");
            }
    close(copy);
    count--;
}

static void accesses(void) {
    static const char *const functions[] = {"access", "euidaccess", "eaccess", "faccessat"};
    static const int modes[] = {F_OK, R_OK, W_OK, X_OK, R_OK | X_OK, 99};
    static const int flags[] = {0, AT_EACCESS, AT_SYMLINK_NOFOLLOW, 0x40000000};
    for (unsigned f = 0; f < LENGTH(functions); f++)
        for (unsigned n = 0; n < count; n++)
            for (unsigned m = 0; m < LENGTH(modes); m++)
                for (unsigned i = 0; i < (f == 3 ? LENGTH(flags) : 1); i++) {
                    char label[64];
                    void *called = function(functions[f]);
                    int result;
                    if (f < 3 && names[n].at != HERE)
                        continue;
                    snprintf(label, sizeof label, "%s mode %d flags %x", names[n].label, modes[m], flags[i]);
                    errno = MARK;
                    if (f == 3)
                        result = ((int (*)(int, const char *, int, int))called)(names[n].at, names[n].path, modes[m], flags[i]);
                    else
                        result = ((int (*)(const char *, int))called)(names[n].path, modes[m]);
                    show_result(functions[f], label, result);
                    printf("\n");
                }
}

static void attributes(void) {
    static const char *const files[] = {"plain", "nocopy"};
    for (unsigned i = 0; i < LENGTH(files); i++) {
        char bytes[256] = {0};
        int descriptor = open(below(files[i]), O_RDONLY);
        errno = MARK;
        show_result("flistxattr", files[i], ((ssize_t(*)(int, char *, size_t))function("flistxattr"))(descriptor, bytes, sizeof bytes));
        printf(" '%s'\n", bytes);
        errno = MARK;
        show_result("fgetxattr", files[i], ((ssize_t(*)(int, const char *, void *, size_t))function("fgetxattr"))(descriptor, "user.belady", bytes, sizeof bytes));
        printf("\n");
        close(descriptor);
    }
    errno = MARK;
    show_result("flistxattr", "closed", ((ssize_t(*)(int, char *, size_t))function("flistxattr"))(CLOSED, NULL, 0));
    printf("\n");
    errno = MARK;
    show_result("fgetxattr", "closed", ((ssize_t(*)(int, const char *, void *, size_t))function("fgetxattr"))(CLOSED, "user.x", NULL, 0));
    printf("\n");
}

void reads(void) {
    make_names();
    opens();
    streams();
    stats();
    descriptor_stats();
    statxs();
    accesses();
    attributes();
    show_result("descriptor", "left", open("/dev/null", O_RDONLY));
    printf("\n");
}
