#include "weir_device.h"

#include <string.h>

static uint8_t *put(uint8_t *at, uint64_t number, unsigned bytes)
{
    for (unsigned n = 0; n < bytes; n++)
        at[n] = (uint8_t)(number >> (8 * (bytes - 1 - n)));
    return at + bytes;
}

static uint64_t get(const uint8_t *at, unsigned bytes)
{
    uint64_t number = 0;
    for (unsigned n = 0; n < bytes; n++)
        number = number << 8 | at[n];
    return number;
}

static uint8_t xor_of(const uint8_t *bytes, size_t size)
{
    uint8_t sum = 0;
    for (size_t n = 0; n < size; n++)
        sum ^= bytes[n];
    return sum;
}

/* Where the body begins, or NULL if the frame has no room. */
static uint8_t *begin(uint8_t *out, size_t room, uint16_t opcode, uint8_t sn, size_t length)
{
    if (length > WEIR_BODY_MAX || room < length + WEIR_FRAME_OVERHEAD)
        return NULL;
    uint8_t *at = put(out, 1, 1);
    at = put(at, length, 4);
    at = put(at, opcode, 2);
    return put(at, sn, 1);
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t size)
{
    if (size > 0)
        memcpy(at, bytes, size);
    return at + size;
}

static size_t end(uint8_t *out, uint8_t *at)
{
    *at = xor_of(out, (size_t)(at - out));
    return (size_t)(at - out) + 1;
}

size_t weir_encode(uint8_t *out, size_t room, uint16_t opcode, uint8_t sn, const void *body,
                   size_t length)
{
    uint8_t *at = begin(out, room, opcode, sn, length);
    return at == NULL ? 0 : end(out, put_bytes(at, body, length));
}

size_t weir_hello(uint8_t *out, size_t room, uint8_t sn, uint64_t hub, uint32_t boot,
                  uint16_t partition, const char *topic, size_t topic_size)
{
    if (topic_size > WEIR_BODY_MAX)
        return 0;
    uint8_t *at = begin(out, room, WEIR_HELLO, sn, 14 + topic_size);
    if (at == NULL)
        return 0;
    at = put(at, hub, 8);
    at = put(at, boot, 4);
    at = put(at, partition, 2);
    return end(out, put_bytes(at, topic, topic_size));
}

size_t weir_publish(uint8_t *out, size_t room, uint8_t sn, const void *value, size_t size)
{
    return weir_encode(out, room, WEIR_PUBLISH, sn, value, size);
}

size_t weir_publish_sequenced(uint8_t *out, size_t room, uint8_t sn, uint32_t sequence,
                              const void *value, size_t size)
{
    if (size > WEIR_BODY_MAX)
        return 0;
    uint8_t *at = begin(out, room, WEIR_PUBLISH_SEQUENCED, sn, 4 + size);
    if (at == NULL)
        return 0;
    at = put(at, sequence, 4);
    return end(out, put_bytes(at, value, size));
}

size_t weir_ping(uint8_t *out, size_t room, uint8_t sn)
{
    return weir_encode(out, room, WEIR_PING, sn, NULL, 0);
}

/* A limit of 0 is not written: the frame is a plain subscribe. */
static size_t subscribe(uint8_t *out, size_t room, uint8_t sn, uint16_t in_hand, uint16_t partition,
                        uint32_t lease_ms, const char *cluster, size_t cluster_size,
                        const char *topic, size_t topic_size)
{
    if (cluster_size > 255 || topic_size > WEIR_BODY_MAX)
        return 0;
    uint8_t *at = begin(out, room, in_hand ? WEIR_SUBSCRIBE_LIMITED : WEIR_SUBSCRIBE, sn,
                        (in_hand ? 9 : 7) + cluster_size + topic_size);
    if (at == NULL)
        return 0;
    if (in_hand)
        at = put(at, in_hand, 2);
    at = put(at, partition, 2);
    at = put(at, lease_ms, 4);
    at = put(at, cluster_size, 1);
    at = put_bytes(at, cluster, cluster_size);
    return end(out, put_bytes(at, topic, topic_size));
}

size_t weir_subscribe(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint32_t lease_ms,
                      const char *cluster, size_t cluster_size, const char *topic,
                      size_t topic_size)
{
    return subscribe(out, room, sn, 0, partition, lease_ms, cluster, cluster_size, topic,
                     topic_size);
}

size_t weir_subscribe_limited(uint8_t *out, size_t room, uint8_t sn, uint16_t in_hand,
                              uint16_t partition, uint32_t lease_ms, const char *cluster,
                              size_t cluster_size, const char *topic, size_t topic_size)
{
    if (in_hand == 0)
        return 0;
    return subscribe(out, room, sn, in_hand, partition, lease_ms, cluster, cluster_size, topic,
                     topic_size);
}

size_t weir_pull(uint8_t *out, size_t room, uint8_t sn, uint16_t messages, uint32_t bytes)
{
    uint8_t *at = begin(out, room, WEIR_PULL, sn, 6);
    if (at == NULL)
        return 0;
    at = put(at, messages, 2);
    return end(out, put(at, bytes, 4));
}

size_t weir_ack(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint64_t fence,
                uint64_t first, uint64_t next)
{
    uint8_t *at = begin(out, room, WEIR_ACK, sn, 26);
    if (at == NULL)
        return 0;
    at = put(at, partition, 2);
    at = put(at, fence, 8);
    at = put(at, first, 8);
    return end(out, put(at, next, 8));
}

size_t weir_nack(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint64_t fence,
                 uint64_t first, uint64_t next, uint32_t delay_ms)
{
    uint8_t *at = begin(out, room, WEIR_NACK, sn, 30);
    if (at == NULL)
        return 0;
    at = put(at, partition, 2);
    at = put(at, fence, 8);
    at = put(at, first, 8);
    at = put(at, next, 8);
    return end(out, put(at, delay_ms, 4));
}

size_t weir_extend(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint64_t fence,
                   uint32_t lease_ms)
{
    uint8_t *at = begin(out, room, WEIR_EXTEND, sn, 14);
    if (at == NULL)
        return 0;
    at = put(at, partition, 2);
    at = put(at, fence, 8);
    return end(out, put(at, lease_ms, 4));
}

long weir_decode(const uint8_t *bytes, size_t size, weir_frame *frame)
{
    if (size < WEIR_HEADER_SIZE)
        return 0;
    if (bytes[0] != 1)
        return WEIR_BAD_VERSION;
    uint32_t length = (uint32_t)get(bytes + 1, 4);
    if (length > (bytes[5] & 0x40 ? WEIR_BODY_SIGNED_MAX : WEIR_BODY_MAX)) /* before anything is kept for it */
        return WEIR_BAD_LENGTH;
    if (size < WEIR_FRAME_OVERHEAD + length)
        return 0;
    if (xor_of(bytes, WEIR_FRAME_OVERHEAD + length) != 0)
        return WEIR_BAD_CHECK;
    frame->opcode = (uint16_t)get(bytes + 5, 2);
    frame->sn = bytes[7];
    frame->length = length;
    frame->body = bytes + WEIR_HEADER_SIZE;
    return (long)(WEIR_FRAME_OVERHEAD + length);
}

static int read_delivery(const uint8_t *body, uint32_t length, weir_reply *reply)
{
    if (reply->code != WEIR_OK && reply->code != WEIR_TOO_LARGE)
        return 0;
    if (length < 16)
        return -1;
    reply->partition = (uint16_t)get(body + 2, 2);
    reply->fence = get(body + 4, 8);
    reply->attempts = (uint16_t)get(body + 12, 2);
    reply->count = (uint16_t)get(body + 14, 2);
    reply->messages = body + 16;
    reply->messages_size = length - 16;
    return 0;
}

int weir_read_reply(const weir_frame *frame, weir_reply *reply)
{
    const uint8_t *body = frame->body;
    memset(reply, 0, sizeof *reply);
    if (!(frame->opcode & WEIR_REPLY) || frame->length < 2)
        return -1;
    reply->opcode = (uint16_t)(frame->opcode & ~WEIR_REPLY);
    reply->sn = frame->sn;
    reply->code = (uint16_t)get(body, 2);
    switch (reply->opcode) {
    case WEIR_HELLO:
    case WEIR_PROVE:
        if (frame->length >= 10)
            reply->system = get(body + 2, 8);
        return 0;
    case WEIR_PUBLISH:
    case WEIR_PUBLISH_SEQUENCED:
        reply->sequence = WEIR_NO_SEQUENCE;
        if (frame->length == 14) {
            reply->sequence = (uint32_t)get(body + 2, 4);
            reply->offset = get(body + 6, 8);
        }
        return 0;
    case WEIR_PULL:
        return read_delivery(body, frame->length, reply);
    case WEIR_ACK:
    case WEIR_NACK:
        if (frame->length == (reply->opcode == WEIR_ACK ? 28 : 32)) {
            reply->partition = (uint16_t)get(body + 2, 2);
            reply->fence = get(body + 4, 8);
            reply->first = get(body + 12, 8);
            reply->next = get(body + 20, 8);
            if (reply->opcode == WEIR_NACK)
                reply->delay_ms = (uint32_t)get(body + 28, 4);
        }
        return 0;
    case WEIR_EXTEND:
        if (frame->length == 16) {
            reply->partition = (uint16_t)get(body + 2, 2);
            reply->fence = get(body + 4, 8);
            reply->lease_ms = (uint32_t)get(body + 12, 4);
        }
        return 0;
    default: /* ping, subscribe, notify, signed, or one of a later release: the code says it all */
        return 0;
    }
}

int weir_next_message(weir_reply *reply, weir_message *message)
{
    if (reply->count == 0)
        return reply->messages_size == 0 ? 0 : -1;
    if (reply->messages_size < 12)
        return -1;
    message->offset = get(reply->messages, 8);
    message->size = (uint32_t)get(reply->messages + 8, 4);
    message->value = reply->code == WEIR_TOO_LARGE ? NULL : reply->messages + 12;
    size_t size = message->value == NULL ? 0 : (size_t)message->size;
    if (size > reply->messages_size - 12) /* 12 + size may not fit into a size_t */
        return -1;
    size_t taken = 12 + size;
    reply->messages += taken;
    reply->messages_size -= taken;
    reply->count--;
    return 1;
}

int weir_may_repeat(uint16_t code)
{
    return code == WEIR_BAD_CHECKSUM || code == WEIR_OVERLOADED || code == WEIR_NOT_LEADER
        || code == WEIR_UNAVAILABLE;
}
