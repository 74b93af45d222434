/* The device dialect of weir in C99: frames in and out of byte arrays. No heap, no sockets.
 * docs/DEVICE.md has every byte; docs/device-frames.txt has frames to check against. */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define WEIR_HEADER_SIZE 8u
#define WEIR_FRAME_OVERHEAD 9u /* header and check byte */
#define WEIR_BODY_MAX 65536u
#define WEIR_BODY_SIGNED_MAX 65544u /* with a MAC */
#define WEIR_BY_HUB 0xFFFFu
#define WEIR_ALL_PARTITIONS 0xFFFEu
#define WEIR_NO_SEQUENCE 0xFFFFFFFFu
#define WEIR_REPLY 0x8000u

enum weir_opcode {
    WEIR_HELLO = 1,
    WEIR_PUBLISH = 2,
    WEIR_PUBLISH_SEQUENCED = 3,
    WEIR_PING = 4,
    WEIR_SUBSCRIBE = 5,
    WEIR_PULL = 6,
    WEIR_ACK = 7,
    WEIR_NOTIFY = 8,
    WEIR_NACK = 9,
    WEIR_EXTEND = 10,
    WEIR_SUBSCRIBE_LIMITED = 11,
    WEIR_PROVE = 12 /* weir_proof.h */
};

/* Codes that a device meets; docs/DEVICE.md says what to do about each. */
enum weir_code {
    WEIR_OK = 0,
    WEIR_TOO_LARGE = 7,
    WEIR_BAD_CHECKSUM = 8,
    WEIR_SEQUENCE_GAP = 9,
    WEIR_SEQUENCE_REUSED = 10,
    WEIR_FENCED = 11,
    WEIR_OVERLOADED = 15,
    WEIR_NOT_LEADER = 16,
    WEIR_UNAVAILABLE = 17,
    WEIR_STALE_GRANT = 20,
    WEIR_ERASED_BOOT = 56,
    WEIR_NOT_AUTHENTICATED = 60,
    WEIR_PROOF_NEEDED = 66
};

/* What weir_decode returns instead of a size. */
enum weir_bad { WEIR_BAD_VERSION = -1, WEIR_BAD_LENGTH = -2, WEIR_BAD_CHECK = -3 };

typedef struct {
    uint16_t opcode;
    uint8_t sn;
    uint32_t length;
    const uint8_t *body;
} weir_frame;

/* A reply taken apart. Which fields are set depends on the opcode; the others are 0. */
typedef struct {
    uint16_t opcode; /* without the top bit */
    uint8_t sn;
    uint16_t code;
    uint64_t system;   /* hello, proof */
    uint32_t sequence; /* publishes */
    uint64_t offset;   /* publishes; what the error says, for some */
    uint16_t partition, attempts, count;
    uint64_t fence;       /* pull, ack, nack, extend */
    uint64_t first, next; /* ack, nack */
    uint32_t delay_ms;    /* nack */
    uint32_t lease_ms;    /* extend */
    const uint8_t *messages;
    size_t messages_size;
} weir_reply;

typedef struct {
    uint64_t offset;
    uint32_t size; /* of the value; after WEIR_TOO_LARGE it is not here, and value is NULL */
    const uint8_t *value;
} weir_message;

/* Encoders: write a whole frame to `out` and return its size, or 0 if `room` bytes do not hold it. */
size_t weir_encode(uint8_t *out, size_t room, uint16_t opcode, uint8_t sn, const void *body,
                   size_t length);
size_t weir_hello(uint8_t *out, size_t room, uint8_t sn, uint64_t hub, uint32_t boot,
                  uint16_t partition, const char *topic, size_t topic_size);
size_t weir_publish(uint8_t *out, size_t room, uint8_t sn, const void *value, size_t size);
size_t weir_publish_sequenced(uint8_t *out, size_t room, uint8_t sn, uint32_t sequence,
                              const void *value, size_t size);
size_t weir_ping(uint8_t *out, size_t room, uint8_t sn);
size_t weir_subscribe(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint32_t lease_ms,
                      const char *cluster, size_t cluster_size, const char *topic,
                      size_t topic_size);
/* As weir_subscribe, for a device that holds up to `in_hand` messages (1 to 1,024) without an ack. */
size_t weir_subscribe_limited(uint8_t *out, size_t room, uint8_t sn, uint16_t in_hand,
                              uint16_t partition, uint32_t lease_ms, const char *cluster,
                              size_t cluster_size, const char *topic, size_t topic_size);
size_t weir_pull(uint8_t *out, size_t room, uint8_t sn, uint16_t messages, uint32_t bytes);
size_t weir_ack(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint64_t fence,
                uint64_t first, uint64_t next);
size_t weir_nack(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint64_t fence,
                 uint64_t first, uint64_t next, uint32_t delay_ms);
size_t weir_extend(uint8_t *out, size_t room, uint8_t sn, uint16_t partition, uint64_t fence,
                   uint32_t lease_ms);

/* Find the frame that begins at `bytes`: return its size, 0 if bytes are missing, or a weir_bad.
 * After a weir_bad the stream is out of step: connect again. The frame points into `bytes`. */
long weir_decode(const uint8_t *bytes, size_t size, weir_frame *frame);

/* Take a reply apart; return 0, or -1 if it is none, or not as long as its opcode says. */
int weir_read_reply(const weir_frame *frame, weir_reply *reply);

/* Take the next message out of the reply to a pull: return 1, 0 behind the last, -1 if it is cut. */
int weir_next_message(weir_reply *reply, weir_message *message);

/* Whether a refused request may be sent again as it is, after a pause. */
int weir_may_repeat(uint16_t code);

#endif
