/* Digests: one number per env for all its replies since its last restore point.
 *
 * A worker extends the digest with each row. After a crash its successor repeats the env's
 * commands and must compute the same number. Digests detect differences; they are not
 * cryptographic. */
#ifndef VECENV_DIGEST_H
#define VECENV_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Of a leaf with more bytes than this, only VECENV_DIGEST_SAMPLES words of 8 bytes are read. */
#define VECENV_DIGEST_WHOLE 1024
#define VECENV_DIGEST_SAMPLES 64
#define VECENV_DIGEST_LANES 4

static inline uint64_t
digest_mix(uint64_t digest, uint64_t word)
{
    digest = (digest ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 32;
}

/* Words go to the lanes one after the other. Lanes do not depend on each other: one chain of
 * multiplications would take four times as long. */
typedef struct {
    uint64_t of[VECENV_DIGEST_LANES];
} digest_lanes;

static inline digest_lanes
digest_part(uint64_t digest)
{
    digest_lanes lanes;
    for (uint64_t lane = 0; lane < VECENV_DIGEST_LANES; lane++) {
        lanes.of[lane] = digest + lane;
    }
    return lanes;
}

static inline uint64_t
digest_join(digest_lanes lanes)
{
    uint64_t digest = lanes.of[0];
    for (int lane = 1; lane < VECENV_DIGEST_LANES; lane++) {
        digest = digest_mix(digest, lanes.of[lane]);
    }
    return digest;
}

/* Return `digest` extended by nbytes at `data`. */
static inline uint64_t
digest_bytes(uint64_t digest, const void *data, size_t nbytes)
{
    const uint8_t *bytes = data;
    uint64_t words[VECENV_DIGEST_LANES];
    if (nbytes >= sizeof words) {
        digest_lanes lanes = digest_part(digest);
        for (; nbytes >= sizeof words; bytes += sizeof words, nbytes -= sizeof words) {
            memcpy(words, bytes, sizeof words);
            for (int lane = 0; lane < VECENV_DIGEST_LANES; lane++) {
                lanes.of[lane] = digest_mix(lanes.of[lane], words[lane]);
            }
        }
        digest = digest_join(lanes);
    }
    for (size_t size = sizeof words[0]; nbytes > 0; bytes += size, nbytes -= size) {
        size = nbytes < size ? nbytes : size;
        words[0] = 0;
        memcpy(words, bytes, size);
        digest = digest_mix(digest, words[0]);
    }
    return digest;
}

/* Return `digest` extended by words of a large leaf. Their positions depend on `seed` alone: a
 * repeated step reads the same positions, another step reads others. */
static inline uint64_t
digest_sample(uint64_t digest, const void *data, size_t nbytes, uint64_t seed)
{
    const uint8_t *bytes = data;
    uint64_t num_words = nbytes / sizeof(uint64_t), word;
    digest_lanes lanes = digest_part(digest), positions = digest_part(digest_mix(0, seed + 1));
    for (int i = 0; i < VECENV_DIGEST_SAMPLES / VECENV_DIGEST_LANES; i++) {
        for (int lane = 0; lane < VECENV_DIGEST_LANES; lane++) {
            uint64_t position = digest_mix(positions.of[lane], (uint64_t)i);
            memcpy(&word, bytes + (size_t)((position >> 32) * num_words >> 32) * sizeof word,
                   sizeof word);
            positions.of[lane] = position;
            lanes.of[lane] = digest_mix(lanes.of[lane], word);
        }
    }
    return digest_join(lanes);
}

#endif
