/* What the parts of the probe share. It calls libc's functions by their names, as any program does,
 * and prints all that can be seen of the answers. The test compares what it prints with the library
 * and without. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define MARK 4242 /* errno before each call */
#define LENGTH(list) (sizeof(list) / sizeof((list)[0]))

extern const char *root;      /* the dataset as it was given: a symbolic link */
extern const char *real_root; /* and without */

/* The function that a program gets that is linked to this name. */
void *function(const char *name);
/* ROOT/NAME, in one of a few places that are used in turn. */
const char *below(const char *name);

void show_result(const char *function, const char *label, long result);
void show_descriptor(int descriptor);
void show_stat(const struct stat *stat);
/* The first bytes of what is read from it. */
void show_bytes(int descriptor);

void reads(void);
void changes(void);
void special(const char *name);
