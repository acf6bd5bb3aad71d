#define _GNU_SOURCE
#include "shm/parent_watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WATCH_STACK_NBYTES 65536
/* From the signal that a parent's end sends to the moment when its pidfd tells of it. */
#define END_MS 200

static int parent_fd = -1;
static pid_t parent_pid;
static pid_t watched_pid; /* this process; what it forks inherits the handler, not the parent */
static volatile pid_t forker; /* the parent, or its fork server */

/* The parent's end of the connection closes as well when the parent becomes another program, by
 * exec: that is still the same process. */
static void *
watch(void *argument)
{
    struct pollfd ends[] = {
        {.fd = parent_fd, .events = POLLIN},
        {.fd = (int)(intptr_t)argument, .events = 0}, /* POLLHUP comes unasked */
    };
    while (poll(ends, 2, -1) < 0 && errno == EINTR) {
    }
    kill(0, SIGKILL);
    return NULL;
}

/* Whether who forked this process has ended. If that was the parent, this does not return. */
static bool
is_orphan(void)
{
    if (getppid() == forker || getpid() != watched_pid) {
        return false;
    }
    if (forker == parent_pid) {
        kill(0, SIGKILL);
    }
    return true;
}

static void
end_with_parent(int timeout_ms)
{
    struct pollfd parent = {.fd = parent_fd, .events = POLLIN};
    if (poll(&parent, 1, timeout_ms) > 0) {
        kill(0, SIGKILL);
    }
}

/* Runs before the env goes on, which may stop itself again before the watcher has had its turn.
 * Where the signal has come to another thread, of a BLAS or of the env, the env's does go on: then
 * there is no time to wait, or it is made to wait as well. */
static void
on_continue(int number)
{
    int before = errno;
    pid_t process = getpid();
    (void)number;
    if (process == watched_pid) {
        bool waits = is_orphan();
        if (waits && syscall(SYS_gettid) != process) {
            syscall(SYS_tgkill, process, process, SIGCONT);
        }
        end_with_parent(waits ? END_MS : 0);
    }
    errno = before;
}

void
vecenv_check_parent(void)
{
    if (is_orphan()) {
        end_with_parent(END_MS);
        forker = getppid(); /* the fork server alone has ended, which is waited for once */
    }
}

int
vecenv_watch_parent(pid_t pid, int pidfd, int connection)
{
    /* A stopped process runs no thread, so its watcher sleeps on. The kernel continues it when
     * the process that forked it ends: the parent, or the fork server, which ends with the
     * parent. At any other time, as when the thread that forked it has ended, nothing comes of
     * it. */
    struct sigaction action = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    parent_fd = pidfd;
    parent_pid = pid;
    watched_pid = getpid();
    forker = getppid();
    if (sigaction(SIGCONT, &action, NULL) < 0 || prctl(PR_SET_PDEATHSIG, SIGCONT) < 0) {
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
    error = pthread_create(&thread, &attributes, watch, (void *)(intptr_t)connection);
    if (error == EINVAL) { /* libraries have more memory per thread than the stack is large */
        pthread_attr_destroy(&attributes);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error = pthread_create(&thread, &attributes, watch, (void *)(intptr_t)connection);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
