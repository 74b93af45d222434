/* Preloaded into a node: from the moment the file $WEIR_SHIM_TRIGGER exists, one kind of call on
 * files below $WEIR_SHIM_FOLDER fails with EIO, as a disk does whose sectors have died.
 * $WEIR_SHIM_CALL: sync or write. Build: cc -shared -fPIC -o shim.so disk_shim.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int fd, const char *call)
{
    const char *folder = getenv("WEIR_SHIM_FOLDER"), *trigger = getenv("WEIR_SHIM_TRIGGER");
    const char *wanted = getenv("WEIR_SHIM_CALL");
    char link[64], path[4096];
    if (!folder || !trigger || !wanted || strcmp(wanted, call) || access(trigger, F_OK))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int fdatasync(int fd)
{
    if (fails(fd, "sync")) {
        errno = EIO;
        return -1;
    }
    return REAL(fdatasync)(fd);
}

int fsync(int fd)
{
    if (fails(fd, "sync")) {
        errno = EIO;
        return -1;
    }
    return REAL(fsync)(fd);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    if (fails(fd, "write")) {
        errno = EIO;
        return -1;
    }
    return REAL(pwritev)(fd, parts, count, offset);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    if (fails(fd, "write")) {
        errno = EIO;
        return -1;
    }
    return REAL(pwritev2)(fd, parts, count, offset, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    if (fails(fd, "write")) {
        errno = EIO;
        return -1;
    }
    return REAL(pwritev64v2)(fd, parts, count, offset, flags);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    if (fails(fd, "write")) {
        errno = EIO;
        return -1;
    }
    return REAL(pwritev64)(fd, parts, count, offset);
}
