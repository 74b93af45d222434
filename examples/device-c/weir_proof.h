/* Proofs and signed frames of the device dialect, for devices of a fleet: docs/DEVICE.md, opcode 12.
 * C99, no heap, no library: SHA-256 and HMAC are here. */
#ifndef WEIR_PROOF_H
#define WEIR_PROOF_H

#include "weir_device.h"

#define WEIR_SECRET_SIZE 32u
#define WEIR_NONCE_SIZE 16u
#define WEIR_PROOF_SIZE 32u
#define WEIR_MAC_SIZE 8u
#define WEIR_SIGNED 0x4000u
#define WEIR_LEVEL_PROOF 1
#define WEIR_LEVEL_SIGNED 2

/* What a device says hello with, the broker's challenge, and what is flashed into the device. */
typedef struct {
    uint64_t system; /* of the challenge */
    uint64_t hub;
    uint32_t generation;
    uint8_t key_version;
    uint32_t boot;
    uint16_t partition; /* as in the hello */
    uint8_t level;      /* at least that of the challenge */
    const char *topic;
    size_t topic_size;
    const uint8_t *broker_nonce; /* of the challenge */
    const uint8_t *device_nonce;
} weir_claim;

/* One way of a connection whose frames are signed. */
typedef struct {
    uint8_t key[WEIR_SECRET_SIZE];
    uint64_t counter;
} weir_signer;

void weir_hmac(const uint8_t *key, size_t key_size, const void *label, size_t label_size,
               const uint8_t *words, size_t words_size, uint8_t out[32]);

/* A nonce for a device without randomness: it must never say hello twice with the same two. */
void weir_counted_nonce(uint32_t boot, uint32_t connection, uint8_t out[WEIR_NONCE_SIZE]);

/* Write the frame of a proof; 0 if `room` bytes do not hold it, or the topic is over 255 bytes. */
size_t weir_prove(uint8_t *out, size_t room, uint8_t sn, const uint8_t secret[WEIR_SECRET_SIZE],
                  const weir_claim *claim);

/* Take the reply to a hello apart whose code is WEIR_PROOF_NEEDED; -1 if it is no challenge. */
int weir_read_challenge(const weir_frame *frame, weir_claim *claim);

/* Whether the reply to a proof is from a broker that has the same secret: 1, or 0. */
int weir_check_broker(const weir_frame *frame, const uint8_t secret[WEIR_SECRET_SIZE],
                      const weir_claim *claim);

/* The keys of the frames behind a proof at WEIR_LEVEL_SIGNED: what this side sends, and takes. */
int weir_frame_keys(const uint8_t secret[WEIR_SECRET_SIZE], const weir_claim *claim,
                    weir_signer *sends, weir_signer *takes);

/* Sign the frame of `size` bytes in `frame`, where it stands; return its new size, or 0 if there is
 * no room for 8 bytes more. */
size_t weir_sign(weir_signer *sends, uint8_t *frame, size_t size, size_t room);

/* Check a frame that weir_decode found, and take its MAC off; -1 if it is not the next one of this
 * connection: close it. */
int weir_open(weir_signer *takes, const uint8_t *bytes, weir_frame *frame);

#endif
