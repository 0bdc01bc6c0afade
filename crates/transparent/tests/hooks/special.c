/* Files opened outside main. */
#include "probe.h"
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>

static void show(const char *label, const char *file) {
    int descriptor = open(file, O_RDONLY);
    printf("%s", label);
    show_bytes(descriptor);
    printf("\n");
    fflush(stdout);
    close(descriptor);
}

static void children(void) {
    fflush(stdout);
    if (fork() == 0) {
        show("fork", below("plain"));
        _exit(0);
    }
    wait(NULL);
    if (vfork() == 0) {
        int descriptor = open(below("plain"), O_RDONLY);
        struct stat stat;
        if (descriptor < 0 || fstat(descriptor, &stat) != 0)
            _exit(1);
        execlp("cat", "cat", below("plain"), NULL);
        _exit(1);
    }
    wait(NULL);
    show("\nparent", below("plain"));
}

/* A written file is not read from its copy, whichever process writes. */
static void reopened(void) {
    char path[64];
    int copy = open(below("plain"), O_RDONLY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", copy);
    int writer = open(path, O_WRONLY | O_TRUNC);
    if (write(writer, "WRITTEN", 7) != 7)
        printf("not written\n");
    close(writer);
    show("reopened", below("plain"));
    int alias = open(below("../alias"), O_WRONLY);
    if (write(alias, "WRITTEN", 7) != 7)
        printf("not written\n");
    show("alias", below("sub/deep"));
}

/* Names of a descriptor lead to the source, in every way that a path is used. */
static void named(void) {
    static const char *const forms[] = {"/proc/self/fd/%d", "/proc/thread-self/fd/%d", "/dev/fd/%d", "/dev/stdin"};
    static const struct timespec times[2] = {{1000, 0}, {2000, 0}};
    char path[64];
    struct stat by_name, by_descriptor;
    int descriptor = open(below("plain"), O_RDONLY);
    dup2(descriptor, 0);
    fstat(descriptor, &by_descriptor);
    for (int form = 0; form < 4; form++) {
        snprintf(path, sizeof path, forms[form], descriptor);
        int result = stat(path, &by_name);
        printf("%d %d %d\n", result, by_name.st_ino == by_descriptor.st_ino, by_name.st_mode == by_descriptor.st_mode);
    }
    snprintf(path, sizeof path, forms[0], descriptor);
    printf("linkat %d\n", linkat(AT_FDCWD, path, AT_FDCWD, below("linked"), AT_SYMLINK_FOLLOW));
    printf("utimensat %d\n", utimensat(AT_FDCWD, path, times, 0));
    snprintf(path, sizeof path, forms[2], descriptor);
    printf("chmod %d\n", chmod(path, 0640));
    printf("truncate %d\n", truncate("/dev/stdin", 3));
    close(descriptor);
    stat(below("plain"), &by_name);
    printf("mode %o size %ld links %ld\n", by_name.st_mode, (long)by_name.st_size, (long)by_name.st_nlink);
    show("plain", below("plain"));
    show("linked", below("linked"));
}

/* A process outside the job has replaced the file. */
static void appended(void) {
    int writer = open(below("plain"), O_WRONLY | O_APPEND);
    if (write(writer, "+", 1) != 1)
        printf("not written\n");
    close(writer);
    show("plain", below("plain"));
    show("deep", below("sub/deep"));
}

static void show_from(const char *label, int directory, const char *file) {
    int descriptor = openat(directory, file, O_RDONLY);
    printf("%s", label);
    show_bytes(descriptor);
    printf("\n");
    close(descriptor);
}

static void moved(void) {
    int directory = open(below("sub"), O_RDONLY | O_DIRECTORY);
    show("before", below("sub/deep"));
    show_from("before", directory, "deep");
    if (rename(below("sub"), below("moved")) != 0 || mkdir(below("sub"), 0700) != 0)
        printf("not moved\n");
    errno = MARK;
    show_result("open", "gone", open(below("sub/deep"), O_RDONLY));
    printf("\n");
    show("moved", below("moved/deep"));
    show_from("moved", directory, "deep");
    show("plain", below("plain"));
}

/* Swaps two links, as when a dataset is replaced by a new version. */
static void relinked(void) {
    show("before", below("link"));
    show("before", below("sublink/deep"));
    if (unlink(below("link")) || symlink("nocopy", below("link")))
        printf("no link\n");
    show("link", below("link"));
    if (symlink("other", below("new")) || rename(below("new"), below("sublink")))
        printf("no link\n");
    show("sublink", below("sublink/deep"));
}

static void rights(void) {
    if (setgid(65534) != 0 || setuid(65534) != 0)
        exit(4);
    errno = MARK;
    show_result("open", "secret", open(below("secret"), O_RDONLY));
    errno = MARK;
    show_result("access", "secret", access(below("secret"), R_OK));
    show("plain", below("plain"));
}

static void fresh_descriptor(int number) {
    (void)number;
    int error = errno;
    char bytes[8];
    int descriptor = open(below("sub/deep"), O_RDONLY);
    struct stat stat;
    if (descriptor < 0 || fstat(descriptor, &stat) != 0 || read(descriptor, bytes, 6) != 6)
        abort();
    close(descriptor);
    errno = error;
}

static void *reader(void *seed) {
    unsigned dice = (unsigned)(uintptr_t)seed;
    static const char *const files[] = {"plain", "nocopy", "sub/deep", "link", "sublink/deep"};
    for (int i = 0; i < 3000; i++) {
        char path[PATH_MAX], bytes[8] = {0};
        struct stat stat, again;
        snprintf(path, sizeof path, "%s/%s", root, files[rand_r(&dice) % LENGTH(files)]);
        int descriptor = open(path, O_RDONLY);
        if (descriptor < 0 || read(descriptor, bytes, 6) != 6 || fstat(descriptor, &stat) != 0)
            return "not read";
        if (strcmp(bytes, "source") && strcmp(bytes, "copied"))
            return "other bytes";
        if (fstatat(AT_FDCWD, path, &again, 0) != 0 || again.st_ino != stat.st_ino)
            return "another file";
        close(descriptor);
    }
    return NULL;
}

static void storm(void) {
    pthread_t threads[8];
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = fresh_descriptor, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (uintptr_t i = 0; i < LENGTH(threads); i++)
        pthread_create(&threads[i], NULL, reader, (void *)(i + 1));
    for (unsigned i = 0; i < LENGTH(threads); i++) {
        void *trouble;
        pthread_join(threads[i], &trouble);
        if (trouble)
            printf("%s\n", (char *)trouble);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("descriptor left %d\n", open("/dev/null", O_RDONLY));
}

/* More directories than the shim caches, from several threads. */
#define CROWD 150
static int crowd_of[CROWD];

static void *walker(void *seed) {
    unsigned dice = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 5000; i++) {
        int number = rand_r(&dice) % CROWD;
        char bytes[16] = {0}, wanted[16];
        int descriptor = openat(crowd_of[number], "file", O_RDONLY);
        snprintf(wanted, sizeof wanted, "copied %d", number);
        if (read(descriptor, bytes, 15) < 0 || strcmp(bytes, wanted))
            return "other bytes";
        close(descriptor);
    }
    return NULL;
}

/* The descriptor of an unrelated directory is reused for one in the dataset. */
static void far(void) {
    int directory = open("/", O_RDONLY | O_DIRECTORY);
    show_from("root", directory, below("plain") + 1);
    close(directory);
    int elsewhere = open("/usr", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 3; i++)
        close(openat(elsewhere, "bin", O_RDONLY));
    /* A parent directory leads to the dataset again. */
    char upwards[4096];
    snprintf(upwards, sizeof upwards, "..%s", below("plain"));
    show_from("upwards", elsewhere, upwards);
    close(elsewhere);
    directory = open(below("sub"), O_RDONLY | O_DIRECTORY);
    printf("%s\n", directory == elsewhere ? "the same number" : "another number");
    show_from("below", directory, "deep");
    close(directory);
}

static void crowd(void) {
    pthread_t threads[8];
    for (int i = 0; i < CROWD; i++) {
        char name[32];
        snprintf(name, sizeof name, "crowd/%d", i);
        crowd_of[i] = open(below(name), O_RDONLY | O_DIRECTORY);
    }
    for (uintptr_t i = 0; i < LENGTH(threads); i++)
        pthread_create(&threads[i], NULL, walker, (void *)(i + 1));
    for (unsigned i = 0; i < LENGTH(threads); i++) {
        void *trouble;
        pthread_join(threads[i], &trouble);
        printf("%s\n", trouble ? (char *)trouble : "good");
    }
}

/* A signal handler with 12 KiB of stack besides the kernel's frame, in whole pages, above a guard. */
static int directory_at_hand;

static void on_small_stack(int number) {
    struct stat stat;
    struct statx wide;
    (void)number;
    int found = close(open("deep", O_RDONLY)) == 0 && close(open("../nocopy", O_RDONLY)) == 0 &&
                close(openat(directory_at_hand, "plain", O_RDONLY)) == 0 &&
                fstatat(directory_at_hand, "plain", &stat, 0) == 0 && access("../plain", R_OK) == 0 &&
                statx(AT_FDCWD, "../link", 0, STATX_BASIC_STATS, &wide) == 0 &&
                close(open("../nocopy", O_RDWR)) == 0 && chmod("../nocopy", 0644) == 0;
    if (!found)
        abort();
}

static void small_stack(void) {
    const size_t size = (getauxval(AT_MINSIGSTKSZ) + (12 << 10) + 4095) / 4096 * 4096, guard = 64 << 10;
    char *room = mmap(NULL, size + guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(room + guard, size, PROT_READ | PROT_WRITE);
    stack_t stack = {.ss_sp = room + guard, .ss_size = size};
    struct sigaction action = {.sa_handler = on_small_stack, .sa_flags = SA_ONSTACK};
    directory_at_hand = open(root, O_RDONLY | O_DIRECTORY);
    if (sigaltstack(&stack, NULL) != 0 || sigaction(SIGUSR1, &action, NULL) != 0 || raise(SIGUSR1) != 0)
        exit(5);
    printf("returned\n");
}

static void gone(void) {
    errno = MARK;
    show_result("unlink", "gone", unlink(below("plain")));
    errno = MARK;
    show_result("open", "gone", open(below("plain"), O_RDONLY));
    printf("\n");
}

/* The dataset has a third name, which only the kernel can resolve. */
static void side_door(void) {
    char from[PATH_MAX], to[PATH_MAX];
    snprintf(from, sizeof from, "%s-door/nocopy", real_root);
    snprintf(to, sizeof to, "%s-door/plain", real_root);
    show("before", below("plain"));
    if (rename(from, to) != 0)
        printf("not renamed\n");
    show("after", below("plain"));
    snprintf(to, sizeof to, "%s-door/sub/deep", real_root);
    if (unlink(to) != 0)
        printf("not removed\n");
    errno = MARK;
    show_result("open", "removed", open(below("sub/deep"), O_RDONLY));
    printf("\n");
}

/* fstat of an open copy returns the copy's size while its source grows. */
static void grown(void) {
    struct stat stat;
    int reader = open(below("plain"), O_RDONLY), writer = open(below("plain"), O_WRONLY | O_APPEND);
    if (write(writer, "more", 4) != 4 || fstat(reader, &stat) != 0)
        printf("not grown\n");
    printf("%s\n", stat.st_size == lseek(reader, 0, SEEK_END) ? "all of it" : "another size");
}

static void kind(void) {
    struct stat stat;
    errno = MARK;
    show_result("lstat", "kind", lstat(below("plain"), &stat));
    printf(" mode %o\n", stat.st_mode);
}

void special(const char *name) {
    if (!strcmp(name, "side-door")) {
        side_door();
        return;
    }
    if (!strcmp(name, "grown")) {
        grown();
        return;
    }
    if (!strcmp(name, "kind")) {
        kind();
        return;
    }
    if (!strcmp(name, "gone")) {
        gone();
        return;
    }
    if (!strcmp(name, "far")) {
        far();
        return;
    }
    if (!strcmp(name, "crowd")) {
        crowd();
        return;
    }
    if (!strcmp(name, "small-stack")) {
        small_stack();
        return;
    }
    if (!strcmp(name, "children"))
        children();
    else if (!strcmp(name, "reopened"))
        reopened();
    else if (!strcmp(name, "moved"))
        moved();
    else if (!strcmp(name, "named"))
        named();
    else if (!strcmp(name, "appended"))
        appended();
    else if (!strcmp(name, "relinked"))
        relinked();
    else if (!strcmp(name, "rights"))
        rights();
    else if (!strcmp(name, "storm"))
        storm();
    else
        show("plain", below("plain"));
}
