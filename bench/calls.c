/* What calls on files cost, in loops: the same program runs with and without `belady run`.
 *
 *     cc -O2 -pthread -o calls bench/calls.c
 *     calls open 1000 30 1 FOLDER     (1000 calls a round, 30 rounds, 1 thread)
 *
 * | case    | a call is                                                    |
 * |---------|--------------------------------------------------------------|
 * | open    | open, read of the whole file at once, close                  |
 * | pread   | pread of 4 KiB at a random place of an open file             |
 * | mmap    | mmap of an open file, a byte of each page, munmap            |
 * | stat    | stat by name                                                 |
 * | fstat   | fstat of an open file                                        |
 * | access  | access by name, for reading                                  |
 * | nothing | the loop alone, for what start-up takes                      |
 *
 * The folder's files are taken in turns. It prints JSON: nanoseconds a call, of wall time and of the processor's,
 * for each round. A round more goes before them, which is not shown. Each thread makes all calls, so
 * that with two threads on two cores a call takes as long as with one if they do not meet.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4096, PAGE = 4096 };

struct file {
    const char *path;
    size_t size;
    int open;
};

struct thread {
    uint64_t random;
    char *buffer;
    /* Summed up, so that no call is left out by the compiler. */
    uint64_t seen;
};

typedef void call(struct thread *, const struct file *);

static struct file *files;
static long file_count, call_count;
static call *chosen;

static void fail(const char *what, const char *path) {
    fprintf(stderr, "calls: cannot %s %s: ", what, path);
    perror(NULL);
    exit(1);
}

static void call_open(struct thread *thread, const struct file *file) {
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open", file->path);
    if (read(fd, thread->buffer, file->size) != (ssize_t)file->size) fail("read", file->path);
    thread->seen += (unsigned char)thread->buffer[0];
    close(fd);
}

static void call_pread(struct thread *thread, const struct file *file) {
    /* xorshift: as cheap as a random number can be. */
    thread->random ^= thread->random << 13;
    thread->random ^= thread->random >> 7;
    thread->random ^= thread->random << 17;
    size_t pieces = file->size / PIECE;
    off_t at = pieces ? (off_t)(thread->random % pieces) * PIECE : 0;
    if (pread(file->open, thread->buffer, PIECE, at) < 0) fail("read", file->path);
    thread->seen += (unsigned char)thread->buffer[0];
}

static void call_mmap(struct thread *thread, const struct file *file) {
    unsigned char *map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, file->open, 0);
    if (map == MAP_FAILED) fail("map", file->path);
    for (size_t at = 0; at < file->size; at += PAGE) thread->seen += map[at];
    munmap(map, file->size);
}

static void call_stat(struct thread *thread, const struct file *file) {
    struct stat found;
    if (stat(file->path, &found) != 0) fail("stat", file->path);
    thread->seen += (uint64_t)found.st_size;
}

static void call_fstat(struct thread *thread, const struct file *file) {
    struct stat found;
    if (fstat(file->open, &found) != 0) fail("stat", file->path);
    thread->seen += (uint64_t)found.st_size;
}

static void call_access(struct thread *thread, const struct file *file) {
    if (access(file->path, R_OK) != 0) fail("access", file->path);
    thread->seen++;
}

static void call_nothing(struct thread *thread, const struct file *file) {
    thread->seen += file->size;
}

static const struct {
    const char *name;
    call *call;
} cases[] = {
    {"open", call_open}, {"pread", call_pread},   {"mmap", call_mmap},       {"stat", call_stat},
    {"fstat", call_fstat}, {"access", call_access}, {"nothing", call_nothing},
};

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *make_calls(void *argument) {
    struct thread *thread = argument;
    for (long at = 0; at < call_count; at++) chosen(thread, &files[at % file_count]);
    return NULL;
}

static void make_round(struct thread *threads, long count) {
    pthread_t running[count];
    for (long at = 1; at < count; at++)
        if (pthread_create(&running[at], NULL, make_calls, &threads[at]) != 0) fail("start", "a thread");
    make_calls(&threads[0]);
    for (long at = 1; at < count; at++) pthread_join(running[at], NULL);
}

static int is_file(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void open_files(const char *folder) {
    struct dirent **entries;
    file_count = scandir(folder, &entries, is_file, alphasort);
    if (file_count < 1) fail("find files in", folder);
    files = calloc((size_t)file_count, sizeof *files);
    for (long at = 0; at < file_count; at++) {
        char *path;
        struct stat found;
        if (asprintf(&path, "%s/%s", folder, entries[at]->d_name) < 0) fail("name", folder);
        files[at].path = path;
        files[at].open = open(path, O_RDONLY | O_CLOEXEC);
        if (files[at].open < 0 || fstat(files[at].open, &found) != 0) fail("open", path);
        files[at].size = (size_t)found.st_size;
    }
}

static void print(const char *name, const double *values, long count) {
    printf("\"%s\": [", name);
    for (long at = 0; at < count; at++) printf("%s%.2f", at ? ", " : "", values[at]);
    printf("]");
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: calls CASE COUNT ROUNDS THREADS FOLDER\n");
        return 2;
    }
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++)
        if (strcmp(argv[1], cases[at].name) == 0) chosen = cases[at].call;
    long rounds = atol(argv[3]), threads = atol(argv[4]);
    call_count = atol(argv[2]);
    if (!chosen || call_count < 1 || rounds < 1 || threads < 1) {
        fprintf(stderr, "calls: there is no case %s, or a number is not above zero\n", argv[1]);
        return 2;
    }
    open_files(argv[5]);
    size_t room = PIECE;
    for (long at = 0; at < file_count; at++)
        if (files[at].size > room) room = files[at].size;
    struct thread all[threads];
    for (long at = 0; at < threads; at++)
        all[at] = (struct thread){.random = 88172645463325252ULL + (uint64_t)at, .buffer = malloc(room)};
    double *wall = calloc((size_t)rounds, sizeof *wall), *cpu = calloc((size_t)rounds, sizeof *cpu);
    make_round(all, threads);
    for (long round = 0; round < rounds; round++) {
        double wall_before = now(CLOCK_MONOTONIC), cpu_before = now(CLOCK_PROCESS_CPUTIME_ID);
        make_round(all, threads);
        wall[round] = (now(CLOCK_MONOTONIC) - wall_before) / (double)call_count;
        cpu[round] = (now(CLOCK_PROCESS_CPUTIME_ID) - cpu_before) / (double)(call_count * threads);
    }
    uint64_t seen = 0;
    for (long at = 0; at < threads; at++) seen += all[at].seen;
    printf("{");
    print("wall_ns", wall, rounds);
    printf(", ");
    print("cpu_ns", cpu, rounds);
    printf(", \"seen\": %llu}\n", (unsigned long long)seen);
    return 0;
}
