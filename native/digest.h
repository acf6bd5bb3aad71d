/* Digests: one number per env that stands for all its answers since a known start.
 *
 * A worker chains them row by row; after a crash its successor repeats the env's commands and
 * must arrive at the same number. They find differences, they do not resist an attacker. */
#ifndef VECENV_DIGEST_H
#define VECENV_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Leaves above this many bytes are looked at in VECENV_DIGEST_SAMPLES places only. */
#define VECENV_DIGEST_WHOLE 1024
#define VECENV_DIGEST_SAMPLES 64

static inline uint64_t
digest_mix(uint64_t digest, uint64_t word)
{
    digest = (digest ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 32;
}

/* Digest of nbytes at `data`, begun with `digest`. */
static inline uint64_t
digest_bytes(uint64_t digest, const void *data, size_t nbytes)
{
    const uint8_t *bytes = data;
    uint64_t word;
    while (nbytes >= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        digest = digest_mix(digest, word);
        bytes += sizeof word;
        nbytes -= sizeof word;
    }
    if (nbytes > 0) {
        word = 0;
        memcpy(&word, bytes, nbytes);
        digest = digest_mix(digest, word);
    }
    return digest;
}

/* The same for places of a large leaf that follow from `seed` alone, so that a repetition
 * looks at the same ones, and another step at others. */
static inline uint64_t
digest_sample(uint64_t digest, const void *data, size_t nbytes, uint64_t seed)
{
    const uint8_t *bytes = data;
    uint64_t num_words = nbytes / sizeof(uint64_t), place = digest_mix(0, seed + 1), word;
    for (int i = 0; i < VECENV_DIGEST_SAMPLES; i++) {
        place = place * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(&word, bytes + (size_t)((place >> 32) * num_words >> 32) * sizeof word,
               sizeof word);
        digest = digest_mix(digest, word);
    }
    return digest;
}

#endif
