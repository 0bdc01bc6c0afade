/* Where programs open files besides main. */
#include "probe.h"
#include <pthread.h>
#include <signal.h>

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

/* A file that is written to is not read from its copy, whoever writes. */
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

static void moved(void) {
    show("before", below("sub/deep"));
    if (rename(below("sub"), below("moved")) != 0 || mkdir(below("sub"), 0700) != 0)
        printf("not moved\n");
    errno = MARK;
    show_result("open", "gone", open(below("sub/deep"), O_RDONLY));
    printf("\n");
    show("moved", below("moved/deep"));
    show("plain", below("plain"));
}

/* Two links change places, the way a dataset is replaced by a new version. */
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

void special(const char *name) {
    if (!strcmp(name, "children"))
        children();
    else if (!strcmp(name, "reopened"))
        reopened();
    else if (!strcmp(name, "moved"))
        moved();
    else if (!strcmp(name, "relinked"))
        relinked();
    else if (!strcmp(name, "rights"))
        rights();
    else if (!strcmp(name, "storm"))
        storm();
    else
        show("plain", below("plain"));
}
