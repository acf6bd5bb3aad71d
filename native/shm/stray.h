/* Stray words: values in shared memory that no worker of this build writes.
 *
 * A worker may write anywhere in the memory that it maps, if an env in it has a wrong pointer. So
 * the parent keeps private copies of its own words and never reads them from shared memory. It
 * compares each word of a worker with the plan before it uses the word. A word that is out of range
 * is noted here, and treated as if the worker had not written it. The caller then ends the worker
 * that owns the word, or all of them if the word belongs to no slot. */
#ifndef VECENV_STRAY_H
#define VECENV_STRAY_H

#include <stdint.h>

#define VECENV_NO_SLOT UINT32_MAX
#define VECENV_MAX_STRAY 8 /* further slots are noted when their words are read again */

typedef struct {
    uint32_t slot; /* VECENV_NO_SLOT: the word belongs to none */
    const char *word;
    uint64_t value;
} vecenv_stray_word;

typedef struct {
    uint32_t count;
    vecenv_stray_word words[VECENV_MAX_STRAY];
} vecenv_strays;

/* Note a stray word; only the first one of each slot is kept. */
static inline void
vecenv_note_stray(vecenv_strays *strays, uint32_t slot, const char *word, uint64_t value)
{
    for (uint32_t i = 0; i < strays->count; i++) {
        if (strays->words[i].slot == slot) {
            return;
        }
    }
    if (strays->count < VECENV_MAX_STRAY) {
        strays->words[strays->count++] = (vecenv_stray_word){slot, word, value};
    }
}

/* Drop the note of a slot, whose words have been restored. */
static inline void
vecenv_forget_stray(vecenv_strays *strays, uint32_t slot)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < strays->count; i++) {
        if (strays->words[i].slot != slot) {
            strays->words[kept++] = strays->words[i];
        }
    }
    strays->count = kept;
}

#endif
