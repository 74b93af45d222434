/* A lock over TCP: publishes with sequences until each is confirmed, then receives.
 *
 *   ./demo HOST PORT TOPIC CLUSTER HUB BOOT COUNT [LOSE]
 *
 * Publishes COUNT messages and receives COUNT of the topic as a member of CLUSTER; prints a line for
 * each. With LOSE, the connection is cut once, just behind that publish: it is sent again, and is in
 * the topic once. BOOT must rise with every run of the same HUB: a real device keeps it in flash.
 * A hub of a fleet finds its secret, 64 hex digits, in the environment as WEIR_SECRET, and signs its
 * frames if the fleet demands that. With WEIR_CA, the CA of the set, it speaks TLS, if it was built so;
 * WEIR_CERTIFICATE and WEIR_KEY are its own, which is a proof as well. */
#include "weir_proof.h"
#ifdef WEIR_TLS
#include "weir_tls.h"
#endif

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    SN = 7,              /* this lock, behind its hub */
    ROOM = 2048,         /* the largest frame that it takes, so the most that it pulls */
    ANSWER_MS = 5000,    /* without an answer for so long, it connects again */
    HELLO_MS = 15000,    /* but for hello: it may have to wait to be let in */
    TLS_MS = 30000,      /* handshakes are done in turn when all devices come at once */
    PING_MS = 30000,     /* a device that only waits says so, so often */
    TRIES_MAX = 12,      /* of one request; each waits twice as long as the one before */
    PAUSE_MS = 50,
    PAUSE_MS_MAX = 2000,
    LEASE_MS = 30000
};

static const char *host, *port, *topic, *cluster;
static uint64_t hub;
static uint32_t boot;
static int line = -1;    /* the socket, or -1 */
static int notified;
static int subscribed;   /* whether a new connection must subscribe again */
static uint8_t in[ROOM]; /* what came and is not taken yet */
static size_t in_size, in_taken;
static uint8_t secret[WEIR_SECRET_SIZE];
static int has_secret, is_signed;
static uint32_t connections; /* of this boot: with it, a nonce that never comes twice */
static weir_signer sends, takes;
#ifdef WEIR_TLS
static weir_tls *tls;    /* NULL: plaintext */
#endif

static void die(const char *what)
{
    fprintf(stderr, "demo: %s\n", what);
    exit(1);
}

static void hang_up(void)
{
#ifdef WEIR_TLS
    if (tls != NULL)
        weir_tls_close(tls);
#endif
    if (line >= 0)
        close(line);
    line = -1;
    is_signed = 0;
    in_size = in_taken = 0;
}

static void pause_before(int attempt)
{
    long ms = PAUSE_MS;
    while (--attempt > 0 && ms < PAUSE_MS_MAX)
        ms *= 2;
    if (ms > PAUSE_MS_MAX)
        ms = PAUSE_MS_MAX;
    ms = ms / 2 + rand() % ms; /* many devices that lost one broker must not come back as one */
    struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&wait, NULL);
}

static ssize_t put(const uint8_t *bytes, size_t size)
{
#ifdef WEIR_TLS
    if (tls != NULL)
        return weir_tls_send(tls, bytes, size);
#endif
    return send(line, bytes, size, MSG_NOSIGNAL);
}

static ssize_t get(uint8_t *bytes, size_t room)
{
#ifdef WEIR_TLS
    if (tls != NULL)
        return weir_tls_receive(tls, bytes, room);
#endif
    return recv(line, bytes, room, 0);
}

/* Wait until there is something to get: above 0, 0 if nothing came in time, -1 for an error. */
static int wait_for_bytes(int wait_ms)
{
#ifdef WEIR_TLS
    if (tls != NULL && weir_tls_has_more(tls))
        return 1;
#endif
    struct pollfd ready = {line, POLLIN, 0};
    return poll(&ready, 1, wait_ms);
}

static int send_all(const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = put(bytes, size);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        bytes += sent;
        size -= (size_t)sent;
    }
    return 0;
}

/* Wait for the next frame: 1, 0 if none came in time, -1 if the connection is of no use any more.
 * The reply points into `in` until the next call. */
static int receive(weir_reply *reply, int wait_ms)
{
    for (;;) {
        weir_frame frame;
        memmove(in, in + in_taken, in_size -= in_taken);
        in_taken = 0;
        long size = weir_decode(in, in_size, &frame);
        if (size < 0 || (size > 0 && is_signed && weir_open(&takes, in, &frame) != 0)
            || (size > 0 && weir_read_reply(&frame, reply) != 0))
            return -1;
        if (size > 0) {
            in_taken = (size_t)size;
            return 1;
        }
        if (in_size == sizeof in)
            return -1; /* larger than was asked for */
        int found = wait_for_bytes(wait_ms);
        if (found == 0)
            return 0;
        ssize_t got = found < 0 ? -1 : get(in + in_size, sizeof in - in_size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        in_size += (size_t)got;
    }
}

static void take_notify(const weir_reply *notify)
{
    if (notify->code != WEIR_OK)
        die("the subscription is over: its topic is gone");
    notified = 1;
}

/* Send a request and wait for its reply; what comes in between is a notify. 0, or -1 for a broken
 * connection. */
static int exchange(const uint8_t *frame, size_t size, weir_reply *reply)
{
    uint8_t out[ROOM + WEIR_MAC_SIZE];
    if (size == 0)
        die("a frame is larger than this device can hold");
    memcpy(out, frame, size);
    if (is_signed)
        size = weir_sign(&sends, out, size, sizeof out);
    if (send_all(out, size) != 0)
        return -1;
    for (;;) {
        if (receive(reply, frame[6] == WEIR_HELLO ? HELLO_MS : ANSWER_MS) != 1)
            return -1;
        if (reply->opcode != WEIR_NOTIFY)
            return 0;
        take_notify(reply);
    }
}

/* Answer the challenge that lies at the beginning of `in`, and check the broker's own proof. */
static int prove(void)
{
    uint8_t frame[ROOM], asked[WEIR_NONCE_SIZE], nonce[WEIR_NONCE_SIZE];
    weir_frame found;
    weir_reply reply;
    weir_claim claim = {.hub = hub, .key_version = 1, .boot = boot, .partition = WEIR_BY_HUB,
                        .topic = topic, .topic_size = strlen(topic), .device_nonce = nonce};
    if (weir_decode(in, in_size, &found) <= 0 || weir_read_challenge(&found, &claim) != 0)
        return -1;
    memcpy(asked, claim.broker_nonce, sizeof asked); /* `in` is used again */
    claim.broker_nonce = asked;
    weir_counted_nonce(boot, ++connections, nonce);
    size_t size = weir_prove(frame, sizeof frame, 0, secret, &claim);
    if (exchange(frame, size, &reply) != 0 || weir_may_repeat(reply.code))
        return -1;
    if (reply.code != WEIR_OK)
        die("the broker does not take this hub with this secret");
    if (weir_decode(in, in_size, &found) <= 0 || !weir_check_broker(&found, secret, &claim))
        die("this is not the broker of this hub");
    is_signed = claim.level >= WEIR_LEVEL_SIGNED;
    return is_signed ? weir_frame_keys(secret, &claim, &sends, &takes) : 0;
}

static int greet(void)
{
    uint8_t frame[ROOM];
    weir_reply reply;
    size_t size = weir_hello(frame, sizeof frame, 0, hub, boot, WEIR_BY_HUB, topic, strlen(topic));
    if (exchange(frame, size, &reply) != 0 || weir_may_repeat(reply.code))
        return -1;
    if (has_secret && reply.code == WEIR_OK)
        die("the broker asked for no proof: somebody else may answer there");
    if (has_secret && reply.code == WEIR_PROOF_NEEDED) {
        if (prove() != 0)
            return -1;
    } else if (reply.code != WEIR_OK) {
        die(reply.code == WEIR_PROOF_NEEDED ? "this hub needs its secret: set WEIR_SECRET"
                                            : "the broker refused hello: check the topic");
    }
    if (!subscribed)
        return 0;
    size = weir_subscribe(frame, sizeof frame, SN, WEIR_ALL_PARTITIONS, LEASE_MS, cluster,
                          strlen(cluster), topic, strlen(topic));
    if (exchange(frame, size, &reply) != 0 || weir_may_repeat(reply.code))
        return -1;
    if (reply.code != WEIR_OK)
        die("the broker refused to subscribe");
    return 0;
}

/* Shake hands by TLS, if the demo is to; a broker that is not trusted is none to ask again. */
static int secure(void)
{
#ifdef WEIR_TLS
    struct timeval patience = {TLS_MS / 1000, 0}; /* half a record must not hold it for ever */
    if (tls == NULL)
        return 0;
    setsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(line, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    int found = weir_tls_open(tls, line);
    if (found == -2)
        die(weir_tls_why(tls));
    if (found != 0)
        return -1;
#endif
    return 0;
}

static void begin_tls(void)
{
    const char *ca = getenv("WEIR_CA");
    if (ca == NULL)
        return;
#ifdef WEIR_TLS
    signal(SIGPIPE, SIG_IGN);
    const char *name = getenv("WEIR_SERVER_NAME");
    tls = weir_tls_new(ca, name != NULL ? name : host, getenv("WEIR_CERTIFICATE"),
                       getenv("WEIR_KEY"));
    if (tls == NULL)
        die("the files of WEIR_CA, WEIR_CERTIFICATE and WEIR_KEY cannot be read, or do not fit");
#else
    die("WEIR_CA is set, and this demo was built without TLS: install libssl-dev, make clean, make");
#endif
}

static int dial(void)
{
    struct addrinfo hints = {0}, *found, *at;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    for (at = found; at != NULL && line < 0; at = at->ai_next) {
        line = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
        if (line >= 0 && connect(line, at->ai_addr, at->ai_addrlen) != 0)
            hang_up();
    }
    freeaddrinfo(found);
    if (line < 0)
        return -1;
    int on = 1;
    setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    notified = 0;
    return secure() == 0 ? greet() : -1;
}

/* Ask until there is an answer that asking again would not change. Safe for all but a publish
 * without a sequence: the broker tells a repeat. */
static void ask(const uint8_t *frame, size_t size, weir_reply *reply)
{
    for (int attempt = 1; attempt <= TRIES_MAX; attempt++) {
        if ((line >= 0 || dial() == 0) && exchange(frame, size, reply) == 0) {
            if (!weir_may_repeat(reply->code))
                return;
        } else {
            hang_up();
        }
        pause_before(attempt);
    }
    die("no answer: is a broker there?");
}

static void publish_all(uint32_t count, uint32_t lose)
{
    for (uint32_t sequence = 0; sequence < count; sequence++) {
        uint8_t frame[ROOM];
        char value[64];
        weir_reply reply;
        int length = snprintf(value, sizeof value, "lock %d event %" PRIu32, SN, sequence);
        size_t size = weir_publish_sequenced(frame, sizeof frame, SN, sequence, value,
                                             (size_t)length);
        if (sequence + 1 == lose && (line >= 0 || dial() == 0)) {
            send_all(frame, size);
            hang_up(); /* nobody hears the confirm */
        }
        ask(frame, size, &reply);
        if (reply.code != WEIR_OK)
            die(reply.code == WEIR_SEQUENCE_REUSED || reply.code == WEIR_FENCED
                    ? "this boot count was used before: raise it"
                    : "a publish was refused");
        printf("sent %" PRIu32 " offset %" PRIu64 "\n", sequence, reply.offset);
    }
}

static void wait_for_notify(void)
{
    weir_reply reply;
    while (!notified) {
        int found = line < 0 ? -1 : receive(&reply, PING_MS);
        if (found == 1) {
            if (reply.opcode == WEIR_NOTIFY)
                take_notify(&reply);
        } else {
            uint8_t frame[ROOM];
            if (found < 0)
                hang_up();
            ask(frame, weir_ping(frame, sizeof frame, SN), &reply); /* connects again */
        }
    }
}

static void ack(uint16_t partition, uint64_t fence, uint64_t first, uint64_t next)
{
    uint8_t frame[ROOM];
    weir_reply reply;
    ask(frame, weir_ack(frame, sizeof frame, SN, partition, fence, first, next), &reply);
    if (reply.code != WEIR_OK && reply.code != WEIR_STALE_GRANT)
        die("an ack was refused");
}

/* Pull once, print and ack what came; return how many. */
static uint32_t pull_once(void)
{
    uint8_t frame[ROOM];
    weir_reply reply;
    weir_message message;
    uint32_t count = 0;
    uint64_t first = 0, next = 0;
    int more;
    notified = 0;
    ask(frame, weir_pull(frame, sizeof frame, SN, 16, ROOM - WEIR_FRAME_OVERHEAD), &reply);
    if (reply.code != WEIR_OK && reply.code != WEIR_TOO_LARGE)
        die("a pull was refused");
    while ((more = weir_next_message(&reply, &message)) == 1) {
        if (count == 0)
            first = message.offset;
        next = message.offset + 1;
        count++;
        if (message.value == NULL)
            printf("skipped %" PRIu64 ": %" PRIu32 " bytes\n", message.offset, message.size);
        else
            printf("got %" PRIu64 " %.*s\n", message.offset, (int)message.size,
                   (const char *)message.value);
    }
    if (more < 0)
        die("the broker sent a message that is cut");
    if (count > 0)
        ack(reply.partition, reply.fence, first, next);
    return count;
}

int main(int count, char **arguments)
{
    if (count < 8)
        die("usage: demo HOST PORT TOPIC CLUSTER HUB BOOT COUNT [LOSE]");
    host = arguments[1];
    port = arguments[2];
    topic = arguments[3];
    cluster = arguments[4];
    hub = strtoull(arguments[5], NULL, 0);
    boot = (uint32_t)strtoul(arguments[6], NULL, 0);
    uint32_t messages = (uint32_t)strtoul(arguments[7], NULL, 0), received = 0;
    const char *hex = getenv("WEIR_SECRET");
    if (hex != NULL) {
        if (strlen(hex) != 2 * WEIR_SECRET_SIZE || strspn(hex, "0123456789abcdefABCDEF") != 64)
            die("WEIR_SECRET has 64 hex digits");
        for (size_t n = 0; n < WEIR_SECRET_SIZE; n++) {
            char pair[3] = {hex[2 * n], hex[2 * n + 1], 0};
            secret[n] = (uint8_t)strtoul(pair, NULL, 16);
        }
        has_secret = 1;
    }
    begin_tls();
    srand((unsigned)hub ^ boot);
    publish_all(messages, count > 8 ? (uint32_t)strtoul(arguments[8], NULL, 0) : 0);
    subscribed = 1;
    hang_up(); /* the next connection subscribes */
    while (received < messages) {
        if (line < 0 || !notified)
            wait_for_notify();
        received += pull_once();
    }
    printf("done\n");
    hang_up();
    return 0;
}
