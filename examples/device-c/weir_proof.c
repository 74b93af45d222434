#include "weir_proof.h"

#include <string.h>

enum { BLOCK = 64, DIGEST = 32, TOPIC_MAX = 255, WORDS_MAX = 60 + TOPIC_MAX };

static const uint32_t rounds[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
    0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
    0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
    0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
    0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
    0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
    0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
    0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
    0xc67178f2u};

typedef struct {
    uint32_t state[8];
    uint64_t size;
    uint8_t block[BLOCK];
} sha256;

static uint32_t turned(uint32_t word, unsigned bits)
{
    return word >> bits | word << (32 - bits);
}

static void mix(sha256 *at)
{
    uint32_t w[64], s[8];
    for (unsigned n = 0; n < 16; n++)
        w[n] = (uint32_t)at->block[4 * n] << 24 | (uint32_t)at->block[4 * n + 1] << 16
             | (uint32_t)at->block[4 * n + 2] << 8 | at->block[4 * n + 3];
    for (unsigned n = 16; n < 64; n++)
        w[n] = w[n - 16] + w[n - 7]
             + (turned(w[n - 15], 7) ^ turned(w[n - 15], 18) ^ w[n - 15] >> 3)
             + (turned(w[n - 2], 17) ^ turned(w[n - 2], 19) ^ w[n - 2] >> 10);
    memcpy(s, at->state, sizeof s);
    for (unsigned n = 0; n < 64; n++) {
        uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25))
                     + ((s[4] & s[5]) ^ (~s[4] & s[6])) + rounds[n] + w[n];
        uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22))
                     + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (unsigned n = 0; n < 8; n++)
        at->state[n] += s[n];
}

static void begin(sha256 *at)
{
    static const uint32_t start[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memcpy(at->state, start, sizeof start);
    at->size = 0;
}

static void add(sha256 *at, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t n = 0; n < size; n++) {
        at->block[at->size++ % BLOCK] = bytes[n];
        if (at->size % BLOCK == 0)
            mix(at);
    }
}

static void end(sha256 *at, uint8_t out[DIGEST])
{
    static const uint8_t one = 0x80, none = 0;
    uint8_t bits[8];
    for (unsigned n = 0; n < 8; n++)
        bits[n] = (uint8_t)(at->size * 8 >> (56 - 8 * n));
    add(at, &one, 1);
    while (at->size % BLOCK != BLOCK - 8)
        add(at, &none, 1);
    add(at, bits, 8);
    for (unsigned n = 0; n < DIGEST; n++)
        out[n] = (uint8_t)(at->state[n / 4] >> (24 - 8 * (n % 4)));
}

void weir_hmac(const uint8_t *key, size_t key_size, const void *label, size_t label_size,
               const uint8_t *words, size_t words_size, uint8_t out[DIGEST])
{
    uint8_t padded[BLOCK] = {0};
    sha256 at;
    if (key_size > BLOCK) {
        begin(&at);
        add(&at, key, key_size);
        end(&at, padded);
    } else {
        memcpy(padded, key, key_size);
    }
    for (unsigned n = 0; n < BLOCK; n++)
        padded[n] ^= 0x36;
    begin(&at);
    add(&at, padded, BLOCK);
    add(&at, label, label_size);
    add(&at, words, words_size);
    end(&at, out);
    for (unsigned n = 0; n < BLOCK; n++)
        padded[n] ^= 0x36 ^ 0x5c;
    begin(&at);
    add(&at, padded, BLOCK);
    add(&at, out, DIGEST);
    end(&at, out);
}

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

static int same(const uint8_t *one, const uint8_t *other, size_t size)
{
    uint8_t differs = 0; /* all bytes are compared: how long it takes says nothing */
    for (size_t n = 0; n < size; n++)
        differs |= one[n] ^ other[n];
    return differs == 0;
}

/* The MAC of a claim under a label, whose closing zero counts. */
static int mac_of(const uint8_t *secret, const weir_claim *claim, const char *label,
                  uint8_t out[DIGEST])
{
    uint8_t words[WORDS_MAX], *at = words;
    if (claim->topic_size > TOPIC_MAX)
        return -1;
    at = put(at, claim->system, 8);
    at = put(at, claim->hub, 8);
    at = put(at, claim->generation, 4);
    at = put(at, claim->key_version, 1);
    at = put(at, claim->boot, 4);
    at = put(at, claim->partition, 2);
    at = put(at, claim->level, 1);
    memcpy(at, claim->broker_nonce, WEIR_NONCE_SIZE);
    memcpy(at + WEIR_NONCE_SIZE, claim->device_nonce, WEIR_NONCE_SIZE);
    at += 2 * WEIR_NONCE_SIZE;
    memcpy(at, claim->topic, claim->topic_size);
    at += claim->topic_size;
    weir_hmac(secret, WEIR_SECRET_SIZE, label, strlen(label) + 1, words, (size_t)(at - words), out);
    return 0;
}

void weir_counted_nonce(uint32_t boot, uint32_t connection, uint8_t out[WEIR_NONCE_SIZE])
{
    memset(out, 0, WEIR_NONCE_SIZE);
    put(put(out, boot, 4), connection, 4);
}

size_t weir_prove(uint8_t *out, size_t room, uint8_t sn, const uint8_t secret[WEIR_SECRET_SIZE],
                  const weir_claim *claim)
{
    uint8_t body[6 + WEIR_NONCE_SIZE + WEIR_PROOF_SIZE], *at = body;
    at = put(at, claim->generation, 4);
    at = put(at, claim->key_version, 1);
    at = put(at, claim->level, 1);
    memcpy(at, claim->device_nonce, WEIR_NONCE_SIZE);
    if (mac_of(secret, claim, "weir device proof 1", at + WEIR_NONCE_SIZE) != 0)
        return 0;
    return weir_encode(out, room, WEIR_PROVE, sn, body, sizeof body);
}

int weir_read_challenge(const weir_frame *frame, weir_claim *claim)
{
    if (frame->opcode != (WEIR_HELLO | WEIR_REPLY) || frame->length != 11 + WEIR_NONCE_SIZE
        || get(frame->body, 2) != WEIR_PROOF_NEEDED)
        return -1;
    claim->system = get(frame->body + 2, 8);
    claim->level = frame->body[10];
    claim->broker_nonce = frame->body + 11;
    return 0;
}

int weir_check_broker(const weir_frame *frame, const uint8_t secret[WEIR_SECRET_SIZE],
                      const weir_claim *claim)
{
    uint8_t expected[DIGEST];
    if (frame->opcode != (WEIR_PROVE | WEIR_REPLY) || frame->length != 10 + WEIR_PROOF_SIZE
        || get(frame->body, 2) != WEIR_OK
        || mac_of(secret, claim, "weir broker proof 1", expected) != 0)
        return 0;
    return same(expected, frame->body + 10, WEIR_PROOF_SIZE);
}

int weir_frame_keys(const uint8_t secret[WEIR_SECRET_SIZE], const weir_claim *claim,
                    weir_signer *sends, weir_signer *takes)
{
    sends->counter = takes->counter = 0;
    if (mac_of(secret, claim, "weir device frames 1", sends->key) != 0)
        return -1;
    return mac_of(secret, claim, "weir broker frames 1", takes->key);
}

/* The MAC of the next frame: its header and body are the `size` bytes at `frame`. */
static void next_mac(weir_signer *signer, const uint8_t *frame, size_t size, uint8_t out[DIGEST])
{
    uint8_t counter[8];
    put(counter, signer->counter++, 8);
    weir_hmac(signer->key, WEIR_SECRET_SIZE, counter, sizeof counter, frame, size, out);
}

size_t weir_sign(weir_signer *sends, uint8_t *frame, size_t size, size_t room)
{
    uint8_t mac[DIGEST], sum = 0;
    if (size < WEIR_FRAME_OVERHEAD || room < size + WEIR_MAC_SIZE)
        return 0;
    put(frame + 1, get(frame + 1, 4) + WEIR_MAC_SIZE, 4);
    put(frame + 5, get(frame + 5, 2) | WEIR_SIGNED, 2);
    next_mac(sends, frame, size - 1, mac);
    memcpy(frame + size - 1, mac, WEIR_MAC_SIZE);
    for (size_t n = 0; n < size - 1 + WEIR_MAC_SIZE; n++)
        sum ^= frame[n];
    frame[size - 1 + WEIR_MAC_SIZE] = sum;
    return size + WEIR_MAC_SIZE;
}

int weir_open(weir_signer *takes, const uint8_t *bytes, weir_frame *frame)
{
    uint8_t mac[DIGEST];
    if (!(frame->opcode & WEIR_SIGNED) || frame->length < WEIR_MAC_SIZE)
        return -1;
    size_t signed_size = WEIR_HEADER_SIZE + frame->length - WEIR_MAC_SIZE;
    next_mac(takes, bytes, signed_size, mac);
    if (!same(mac, bytes + signed_size, WEIR_MAC_SIZE))
        return -1;
    frame->opcode = (uint16_t)(frame->opcode & ~WEIR_SIGNED);
    frame->length -= WEIR_MAC_SIZE;
    return 0;
}
