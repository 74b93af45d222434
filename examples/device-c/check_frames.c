/* Checks weir_device.c against docs/device-frames.txt:  ./check_frames ../../docs/device-frames.txt
 * Ends with 0 if every frame is encoded and decoded as it stands there. */
#include "weir_proof.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 4096, PARTS = 5 };

static char *fields; /* name=value pairs of the line at hand */
static int line_number, failures;

static void fail(const char *what)
{
    fprintf(stderr, "line %d: %s\n", line_number, what);
    failures++;
}

/* The text of a field, up to the next blank; "" if there is none. */
static const char *text(const char *name)
{
    static char found[2 * ROOM];
    size_t size = strlen(name);
    for (const char *at = fields; at != NULL && *at; at = strchr(at, ' '), at += at != NULL) {
        if (strncmp(at, name, size) == 0 && at[size] == '=') {
            snprintf(found, sizeof found, "%.*s", (int)strcspn(at + size + 1, " "), at + size + 1);
            return found;
        }
    }
    return "";
}

static uint64_t number(const char *name)
{
    return strtoull(text(name), NULL, 10);
}

static size_t unhex(const char *hex, size_t digits, uint8_t *out)
{
    for (size_t n = 0; n + 1 < digits && n / 2 < ROOM; n += 2) {
        char pair[3] = {hex[n], hex[n + 1], 0};
        out[n / 2] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return digits / 2;
}

static size_t bytes_of(const char *name, uint8_t *out)
{
    const char *hex = text(name);
    return unhex(hex, strlen(hex), out);
}

/* The claim of the line at hand; its topic and nonces lie in `bytes`. */
static weir_claim claim_of(uint8_t bytes[3][ROOM])
{
    weir_claim claim = {0};
    claim.system = number("system");
    claim.hub = number("hub");
    claim.generation = (uint32_t)number("generation");
    claim.key_version = (uint8_t)number("version");
    claim.boot = (uint32_t)number("boot");
    claim.partition = (uint16_t)number("partition");
    claim.level = (uint8_t)number("level");
    claim.topic_size = bytes_of("topic", bytes[0]);
    claim.topic = (char *)bytes[0];
    bytes_of("asked", bytes[1]);
    claim.broker_nonce = bytes[1];
    bytes_of("nonce", bytes[2]);
    claim.device_nonce = bytes[2];
    return claim;
}

static weir_signer signer_of(void)
{
    uint8_t key[ROOM];
    weir_signer signer;
    bytes_of("key", key);
    memcpy(signer.key, key, sizeof signer.key);
    signer.counter = number("counter");
    return signer;
}

static size_t encode(const char *kind, uint8_t *out)
{
    uint8_t one[ROOM], two[ROOM];
    uint8_t sn = (uint8_t)number("sn");
    uint16_t partition = (uint16_t)number("partition");
    if (strcmp(kind, "hello") == 0) {
        size_t size = bytes_of("topic", one);
        return weir_hello(out, ROOM, sn, number("hub"), (uint32_t)number("boot"), partition,
                          (char *)one, size);
    }
    if (strcmp(kind, "publish") == 0) {
        size_t size = bytes_of("value", one);
        return weir_publish(out, ROOM, sn, one, size);
    }
    if (strcmp(kind, "sequenced") == 0) {
        size_t size = bytes_of("value", one);
        return weir_publish_sequenced(out, ROOM, sn, (uint32_t)number("sequence"), one, size);
    }
    if (strcmp(kind, "ping") == 0)
        return weir_ping(out, ROOM, sn);
    if (strcmp(kind, "subscribe") == 0) {
        size_t cluster = bytes_of("cluster", one), topic = bytes_of("topic", two);
        return weir_subscribe(out, ROOM, sn, partition, (uint32_t)number("lease"), (char *)one,
                              cluster, (char *)two, topic);
    }
    if (strcmp(kind, "limited") == 0) {
        size_t cluster = bytes_of("cluster", one), topic = bytes_of("topic", two);
        return weir_subscribe_limited(out, ROOM, sn, (uint16_t)number("hand"), partition,
                                      (uint32_t)number("lease"), (char *)one, cluster, (char *)two,
                                      topic);
    }
    if (strcmp(kind, "pull") == 0)
        return weir_pull(out, ROOM, sn, (uint16_t)number("messages"), (uint32_t)number("bytes"));
    if (strcmp(kind, "ack") == 0)
        return weir_ack(out, ROOM, sn, partition, number("fence"), number("first"),
                        number("next"));
    if (strcmp(kind, "nack") == 0)
        return weir_nack(out, ROOM, sn, partition, number("fence"), number("first"),
                         number("next"), (uint32_t)number("delay"));
    if (strcmp(kind, "extend") == 0)
        return weir_extend(out, ROOM, sn, partition, number("fence"), (uint32_t)number("lease"));
    if (strcmp(kind, "proof") == 0) {
        uint8_t secret[ROOM], parts[3][ROOM];
        weir_claim claim = claim_of(parts);
        bytes_of("secret", secret);
        return weir_prove(out, ROOM, sn, secret, &claim);
    }
    if (strcmp(kind, "signed") == 0) {
        weir_signer signer = signer_of();
        return weir_sign(&signer, out, bytes_of("plain", out), ROOM);
    }
    fail("a kind of request that is not known here");
    return 0;
}

static void same(const char *name, uint64_t found)
{
    if (*text(name) && number(name) != found)
        fail(name);
}

/* Write the messages of a delivery as they stand in the file: offset:value,offset:value */
static void list_messages(weir_reply *reply, char *out, size_t room)
{
    weir_message message;
    size_t at = 0;
    int more;
    *out = 0;
    while ((more = weir_next_message(reply, &message)) == 1) {
        at += (size_t)snprintf(out + at, room - at, "%s%" PRIu64 ":", at ? "," : "",
                               message.offset);
        if (message.value == NULL)
            same("size", message.size);
        else
            for (uint32_t n = 0; n < message.size; n++)
                at += (size_t)snprintf(out + at, room - at, "%02x", message.value[n]);
    }
    if (more < 0)
        fail("a message is cut");
}

/* A signed reply opens to the plain one; another counter or key does not open it. */
static void check_signed(const weir_frame *frame)
{
    uint8_t plain[ROOM];
    const uint8_t *bytes = frame->body - WEIR_HEADER_SIZE;
    weir_signer signer = signer_of();
    weir_frame opened = *frame;
    size_t size = bytes_of("plain", plain);
    if (weir_open(&signer, bytes, &opened) != 0 || opened.length + WEIR_FRAME_OVERHEAD != size
        || memcmp(opened.body, plain + WEIR_HEADER_SIZE, opened.length) != 0
        || opened.opcode != (plain[5] << 8 | plain[6]))
        fail("not opened as expected");
    opened = *frame;
    if (weir_open(&signer, bytes, &opened) == 0) /* its counter has moved on */
        fail("opened twice");
    signer = signer_of();
    signer.key[31] ^= 1;
    if (weir_open(&signer, bytes, &opened) == 0)
        fail("opened with another key");
}

static void check_proof(const weir_frame *frame, const char *kind)
{
    uint8_t secret[ROOM], parts[3][ROOM];
    weir_claim claim = claim_of(parts);
    if (strcmp(kind, "challenge") == 0) {
        weir_claim asked = {0};
        if (weir_read_challenge(frame, &asked) != 0 || asked.level != claim.level
            || asked.system != claim.system || memcmp(asked.broker_nonce, parts[1], 16) != 0)
            fail("a challenge that is not read");
        return;
    }
    bytes_of("secret", secret);
    if (!weir_check_broker(frame, secret, &claim))
        fail("a broker's proof that is not taken");
    claim.boot++;
    if (weir_check_broker(frame, secret, &claim))
        fail("a broker's proof of another claim");
}

static void check_reply(const weir_frame *frame, const char *kind)
{
    weir_reply reply;
    if (strcmp(kind, "signed") == 0) {
        check_signed(frame);
        return;
    }
    if (weir_read_reply(frame, &reply) != 0) {
        fail("a reply that cannot be read");
        return;
    }
    same("sn", reply.sn);
    same("code", reply.code);
    same("opcode", reply.opcode);
    same("system", reply.system);
    if (strcmp(kind, "challenge") == 0 || strcmp(kind, "proven") == 0) {
        check_proof(frame, kind);
        return;
    }
    same("sequence", reply.sequence);
    same("offset", reply.offset);
    same("partition", reply.partition);
    same("fence", reply.fence);
    same("attempts", reply.attempts);
    same("first", reply.first);
    same("next", reply.next);
    same("delay", reply.delay_ms);
    same("lease", reply.lease_ms);
    if (strcmp(kind, "delivery") == 0) {
        char messages[2 * ROOM];
        list_messages(&reply, messages, sizeof messages);
        if (strcmp(messages, text("messages")) != 0)
            fail("messages");
    }
}

static long expected(const char *verdict, size_t size)
{
    if (strcmp(verdict, "good") == 0)
        return (long)size;
    if (strcmp(verdict, "check") == 0)
        return WEIR_BAD_CHECK;
    if (strcmp(verdict, "version") == 0)
        return WEIR_BAD_VERSION;
    return strcmp(verdict, "length") == 0 ? WEIR_BAD_LENGTH : 0;
}

static void check_line(char *line)
{
    char *part[PARTS] = {line, "", "", "", ""};
    for (int n = 1; n < PARTS; n++) {
        char *tab = strchr(part[n - 1], '\t');
        if (tab == NULL) {
            fail("a line has five parts");
            return;
        }
        *tab = 0;
        part[n] = tab + 1;
    }
    const char *side = part[0], *kind = part[1], *verdict = part[2], *hex = part[3];
    uint8_t bytes[ROOM], made[ROOM];
    weir_frame frame;
    fields = part[4];
    size_t size = unhex(hex, strlen(hex), bytes);
    long decoded = weir_decode(bytes, size, &frame);
    if (decoded != expected(verdict, size))
        fail("not decoded as expected");
    else if (decoded > 0 && strcmp(side, "reply") == 0)
        check_reply(&frame, kind);
    else if (decoded > 0 && (encode(kind, made) != size || memcmp(made, bytes, size) != 0))
        fail("not encoded to these bytes");
}

/* No golden frame is so wrong: a size that, added to, is small again where size_t has 32 bits. */
static void check_sizes(void)
{
    static const uint32_t sizes[] = {1, 0x7FFFFFF4u, 0xFFFFFFF4u, 0xFFFFFFFFu};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        uint8_t body[28] = {0};
        uint8_t bytes[sizeof body + WEIR_FRAME_OVERHEAD];
        weir_frame frame;
        weir_reply reply;
        weir_message message;
        body[15] = 1; /* one message */
        for (unsigned at = 0; at < 4; at++)
            body[24 + at] = (uint8_t)(sizes[n] >> (24 - 8 * at));
        size_t size = weir_encode(bytes, sizeof bytes, WEIR_PULL | WEIR_REPLY, 7, body, sizeof body);
        if (weir_decode(bytes, size, &frame) != (long)size || weir_read_reply(&frame, &reply) != 0)
            fail("a delivery that cannot be read");
        else if (weir_next_message(&reply, &message) != -1)
            fail("a message that is larger than its frame");
    }
}

int main(int count, char **arguments)
{
    static char line[4 * ROOM];
    int frames = 0;
    FILE *file = count == 2 ? fopen(arguments[1], "r") : NULL;
    if (file == NULL) {
        fprintf(stderr, "usage: check_frames docs/device-frames.txt\n");
        return 2;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        line_number++;
        line[strcspn(line, "\n")] = 0;
        if (*line == 0 || *line == '#')
            continue;
        check_line(line);
        frames++;
    }
    fclose(file);
    check_sizes();
    printf("%d frames checked, %d failures\n", frames, failures);
    return failures > 0 || frames == 0;
}
