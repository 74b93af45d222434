/* Preloaded into user-mode Linux, on CPUs whose vector state is larger than it knows.
 *
 * A kernel takes the extended state of a traced process as a whole or not at all, so on such a CPU
 * what user-mode Linux gives it is refused (EFAULT) and init dies. Here the rest is filled with
 * zeros: the state of units, AMX among them, that no process inside has asked for.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef long ptrace_call(int, pid_t, void *, void *);

static char whole[1 << 16] __attribute__((aligned(64)));
static size_t whole_size;

long ptrace(enum __ptrace_request request, ...)
{
    static ptrace_call *next;
    va_list arguments;

    va_start(arguments, request);
    pid_t pid = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if (!next && !(next = (ptrace_call *)dlsym(RTLD_NEXT, "ptrace")))
        abort();
    if (request != PTRACE_SETREGSET || address != (void *)NT_X86_XSTATE)
        return next(request, pid, address, data);
    if (!whole_size) {
        struct iovec all = {whole, sizeof whole};
        if (next(PTRACE_GETREGSET, pid, address, &all) < 0)
            return -1;
        whole_size = all.iov_len;
        memset(whole, 0, sizeof whole);
    }
    struct iovec *given = data;
    if (given->iov_len >= whole_size)
        return next(request, pid, address, data);
    memcpy(whole, given->iov_base, given->iov_len);
    struct iovec all = {whole, whole_size};
    return next(request, pid, address, &all);
}
