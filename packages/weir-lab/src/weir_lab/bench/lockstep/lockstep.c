/* Plays prepared requests over many connections. Each connection awaits the confirm of a request
 * before it sends the next one.
 *
 *     lockstep PORT SCRIPT     on 127.0.0.1
 *
 * SCRIPT is a file that weir_lab.bench.lockstep.script writes, little-endian:
 *
 *     "WLS1", u32 dialect (0 weir, 1 redis, 2 nats), u32 connections, and for each connection
 *     u32 length, the bytes of its opening; u32 requests, and for each u32 length, its bytes
 *
 * It says "ready" on stdout once every opening is answered, waits for a line on stdin, plays all,
 * and says "done FIRST LAST CONFIRMED CPU": the times of the first send and of the last confirm, in
 * nanoseconds of CLOCK_MONOTONIC, and the processor time in between. Or it says "failed" and why, and exits with 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define IN_MAX 16384
#define EVENTS 512
#define WEIR_HEADER 16
#define WEIR_REFUSAL 3
#define WEIR_HELLO 1
#define WEIR_PRODUCE 16

enum { WEIR, REDIS, NATS };

typedef struct {
    int fd, ready;
    uint32_t requests, sent, confirmed;
    const char *next;       /* the length of the next request, and its bytes */
    const char *out;        /* what of the request under way is not written yet */
    size_t out_size, in_size;
    char in[IN_MAX];
} Connection;

static int dialect, poll_fd;
static uint32_t connections, ready, ended;
static uint64_t confirmed, last_ns;
static Connection *all;

static void fail(const char *format, ...) {
    va_list given;
    va_start(given, format);
    printf("failed ");
    vprintf(format, given);
    printf("\n");
    fflush(stdout);
    va_end(given);
    exit(1);
}

static uint64_t read_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static uint32_t u32(const char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Give what a broker said as one line of printable text. */
static const char *in_words(const char *said, size_t size) {
    static char text[201];
    size_t kept = size < 200 ? size : 200;
    for (size_t i = 0; i < kept; i++)
        text[i] = said[i] < 32 || said[i] > 126 ? ' ' : said[i];
    text[kept] = 0;
    return text;
}

static void watch(Connection *one, int writes) {
    struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = one};
    if (epoll_ctl(poll_fd, EPOLL_CTL_MOD, one->fd, &event)) fail("epoll: %s", strerror(errno));
}

static void write_on(Connection *one, int waited) {
    while (one->out_size) {
        ssize_t size = send(one->fd, one->out, one->out_size, MSG_NOSIGNAL);
        if (size < 0 && errno == EAGAIN) {
            watch(one, 1);
            return;
        }
        if (size < 0) fail("a write: %s", strerror(errno));
        one->out += size;
        one->out_size -= (size_t)size;
    }
    if (waited) watch(one, 0);
}

static void send_next(Connection *one) {
    one->out_size = u32(one->next);
    one->out = one->next + 4;
    one->next = one->out + one->out_size;
    one->sent++;
    write_on(one, 0);
}

static void is_ready(Connection *one) {
    if (!one->ready) {
        one->ready = 1;
        ready++;
    }
}

static void is_confirmed(Connection *one) {
    one->confirmed++;
    if (one->confirmed > one->sent) fail("more confirms than requests came");
    confirmed++;
    last_ns = read_ns(CLOCK_MONOTONIC);
    if (one->sent < one->requests) send_next(one);
    else ended++;
}

/* Each of these takes one whole reply from the front and returns its size, or 0. */
static size_t take_weir(Connection *one) {
    const char *in = one->in;
    if (one->in_size < WEIR_HEADER) return 0;
    size_t size = WEIR_HEADER + (size_t)u32(in + 4);
    if (one->in_size < size) return 0;
    uint16_t opcode;
    memcpy(&opcode, in + 2, sizeof opcode);
    uint64_t correlation;
    memcpy(&correlation, in + 8, sizeof correlation);
    if (!correlation) return size; /* a notice answers nothing */
    if (in[1] == WEIR_REFUSAL) fail("weir refused: %s", in_words(in + 16, size - 16));
    if (opcode == WEIR_HELLO) is_ready(one);
    else if (opcode == WEIR_PRODUCE) is_confirmed(one);
    else fail("a reply to opcode %d came", opcode);
    return size;
}

/* Return the size of the first line with its end, or 0. */
static size_t line_of(Connection *one) {
    char *end = memmem(one->in, one->in_size, "\r\n", 2);
    return end ? (size_t)(end - one->in) + 2 : 0;
}

static size_t take_redis(Connection *one) {
    size_t line = line_of(one);
    if (!line) return 0;
    if (*one->in == '+') {
        is_ready(one);
        return line;
    }
    if (*one->in != '$') fail("redis refused: %s", in_words(one->in, line));
    size_t size = line + (size_t)atol(one->in + 1) + 2;
    if (one->in_size < size) return 0;
    is_confirmed(one);
    return size;
}

static size_t take_nats(Connection *one) {
    size_t line = line_of(one);
    if (!line) return 0;
    if (!strncmp(one->in, "PONG", 4)) is_ready(one);
    else if (!strncmp(one->in, "PING", 4)) {
        if (send(one->fd, "PONG\r\n", 6, MSG_NOSIGNAL) != 6) fail("a pong was not taken");
    } else if (!strncmp(one->in, "MSG ", 4)) {
        char *size_text = memrchr(one->in, ' ', line);
        size_t size = line + (size_t)atol(size_text) + 2;
        if (one->in_size < size) return 0;
        if (memmem(one->in + line, size - line, "\"error\"", 7) ||
            !memmem(one->in + line, size - line, "\"seq\"", 5))
            fail("nats refused: %s", in_words(one->in + line, size - line));
        is_confirmed(one);
        return size;
    } else if (strncmp(one->in, "INFO", 4) && strncmp(one->in, "+OK", 3))
        fail("nats refused: %s", in_words(one->in, line));
    return line;
}

static void take(Connection *one) {
    size_t size;
    for (;;) {
        ssize_t read = recv(one->fd, one->in + one->in_size, IN_MAX - one->in_size, 0);
        if (read < 0 && errno == EAGAIN) return;
        if (read < 0) fail("a read: %s", strerror(errno));
        if (!read) fail("the broker closed a connection");
        one->in_size += (size_t)read;
        while ((size = dialect == WEIR    ? take_weir(one)
                       : dialect == REDIS ? take_redis(one)
                                          : take_nats(one))) {
            one->in_size -= size;
            memmove(one->in, one->in + size, one->in_size);
        }
        if (one->in_size == IN_MAX) fail("a reply is longer than %d bytes", IN_MAX);
    }
}

static void turn(void) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(poll_fd, events, EVENTS, -1);
    if (count < 0 && errno != EINTR) fail("epoll: %s", strerror(errno));
    for (int i = 0; i < count; i++) {
        Connection *one = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) write_on(one, 1);
        if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) take(one);
    }
}

static void open_one(Connection *one, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int yes = 1;
    one->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (one->fd < 0) fail("a socket: %s", strerror(errno));
    if (connect(one->fd, (struct sockaddr *)&address, sizeof address))
        fail("port %d: %s", port, strerror(errno));
    setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(one->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, one->fd, &event)) fail("epoll: %s", strerror(errno));
}

int main(int count, char **given) {
    if (count != 3) fail("usage: lockstep PORT SCRIPT");
    int file = open(given[2], O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about)) fail("%s: %s", given[2], strerror(errno));
    const char *at = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (at == MAP_FAILED || about.st_size < 12 || memcmp(at, "WLS1", 4)) fail("no such script");
    dialect = (int)u32(at + 4);
    connections = u32(at + 8);
    at += 12;
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    all = calloc(connections, sizeof *all);
    if (poll_fd < 0 || !all) fail("no memory for %u connections", connections);
    for (uint32_t i = 0; i < connections; i++) {
        Connection *one = &all[i];
        open_one(one, atoi(given[1]));
        one->out = at + 4;
        one->out_size = u32(at);
        at = one->out + one->out_size;
        one->requests = u32(at);
        one->next = at += 4;
        for (uint32_t n = 0; n < one->requests; n++) at += 4 + u32(at);
        if (!one->requests) ended++;
        write_on(one, 0);
    }
    while (ready < connections) turn();
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 0;
    uint64_t cpu_ns = read_ns(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t first_ns = last_ns = read_ns(CLOCK_MONOTONIC);
    for (uint32_t i = 0; i < connections; i++)
        if (all[i].requests) send_next(&all[i]);
    while (ended < connections) turn();
    cpu_ns = read_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
    printf("done %llu %llu %llu %llu\n", (unsigned long long)first_ns, (unsigned long long)last_ns,
           (unsigned long long)confirmed, (unsigned long long)cpu_ns);
    return 0;
}
