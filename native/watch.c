#define _GNU_SOURCE
#include "watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>

#define WATCH_STACK_NBYTES 65536

static void *
watch(void *argument)
{
    struct pollfd parent = {.fd = (int)(intptr_t)argument, .events = POLLIN};
    while (poll(&parent, 1, -1) < 0 && errno == EINTR) {
    }
    kill(0, SIGKILL);
    return NULL;
}

int
vecenv_watch_parent(int pidfd)
{
    /* A stopped process runs no thread, so its watcher sleeps on. The kernel wakes it up when
     * the process that forked it ends: the parent, or the fork server, which ends with the
     * parent. Harmless at any other time, as when the thread that forked it has ended. */
    if (prctl(PR_SET_PDEATHSIG, SIGCONT) < 0) {
        return errno;
    }
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) {
        return error;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, WATCH_STACK_NBYTES);
    /* Signals are the env's business: the watcher's thread blocks them all. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    error = pthread_create(&thread, &attributes, watch, (void *)(intptr_t)pidfd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
