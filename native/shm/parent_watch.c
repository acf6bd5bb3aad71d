#define _GNU_SOURCE
#include "shm/parent_watch.h"

#include "shm/marked.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WATCH_STACK_NBYTES 65536
/* Longest time from the signal that the end of the parent sends until its pidfd is readable. */
#define END_MS 200

static int parent_fd = -1;
static pid_t parent_pid;
static pid_t watched_pid; /* this process; forked children inherit the handler, not the parent */
static volatile pid_t forker; /* the process that forked this one: the parent or its fork server */
static char own_mark[64];

static void
kill_all(void)
{
    vecenv_kill_marked(own_mark);
    kill(0, SIGKILL);
}

/* The connection also closes if the parent starts another program by exec; its pid, and so its
 * pidfd, stays the same. */
static void *
watch(void *argument)
{
    struct pollfd ends[] = {
        {.fd = parent_fd, .events = POLLIN},
        {.fd = (int)(intptr_t)argument, .events = 0}, /* POLLHUP is always reported */
    };
    while (poll(ends, 2, -1) < 0 && errno == EINTR) {
    }
    kill_all();
    return NULL;
}

/* Return whether the forker of this process has ended. If it was the parent, kill the group. */
static bool
is_orphan(void)
{
    if (getppid() == forker || getpid() != watched_pid) {
        return false;
    }
    if (forker == parent_pid) {
        kill_all();
    }
    return true;
}

/* Start a detached thread. Signals belong to the env: the thread blocks all of them. */
static int
start_watcher(void *(*watcher)(void *), void *argument)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) {
        return error;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, WATCH_STACK_NBYTES);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    error = pthread_create(&thread, &attributes, watcher, argument);
    if (error == EINVAL) { /* the thread-local memory of libraries exceeds the stack */
        pthread_attr_destroy(&attributes);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error = pthread_create(&thread, &attributes, watcher, argument);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static void
end_with_parent(int timeout_ms)
{
    struct pollfd parent = {.fd = parent_fd, .events = POLLIN};
    if (poll(&parent, 1, timeout_ms) > 0) {
        kill_all();
    }
}

/* Handle SIGCONT. It runs before the env continues, which may stop itself again before the watcher
 * runs. If the forker has ended, it waits up to END_MS for the end of the parent. The signal may
 * have come to another thread, of a BLAS library or of the env. The main thread would continue
 * then, so it gets the signal too. */
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
        forker = getppid(); /* the fork server has ended, the parent has not; do not wait again */
    }
}

int
vecenv_watch_parent(pid_t pid, int pidfd, int connection, const char *mark)
{
    /* In a stopped process the watcher does not run either. So the kernel continues the process
     * when its forker ends: the parent, or the fork server, which ends with the parent. The signal
     * also comes when only the forking thread ends; then the handler does nothing. */
    struct sigaction action = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    if (strlen(mark) >= sizeof own_mark) {
        return ENAMETOOLONG;
    }
    strcpy(own_mark, mark);
    parent_fd = pidfd;
    parent_pid = pid;
    watched_pid = getpid();
    forker = getppid();
    if (sigaction(SIGCONT, &action, NULL) < 0 || prctl(PR_SET_PDEATHSIG, SIGCONT) < 0) {
        return errno;
    }
    return start_watcher(watch, (void *)(intptr_t)connection);
}

/* ---- leases ------------------------------------------------------------------------- */

enum { OVER, SERVER, CLIENT, NUM_ENDS };

typedef struct {
    int numbers[NUM_ENDS]; /* duplicates of the descriptors, -1 if there is none */
    int close_ms;
} lease_watch;

static void
free_lease(lease_watch *lease)
{
    for (int i = 0; i < NUM_ENDS; i++) {
        if (lease->numbers[i] >= 0) {
            close(lease->numbers[i]);
        }
    }
    free(lease);
}

static void *
watch_lease(void *argument)
{
    lease_watch *lease = argument;
    struct pollfd ends[NUM_ENDS] = {
        [OVER] = {.fd = lease->numbers[OVER], .events = POLLIN},
        [SERVER] = {.fd = lease->numbers[SERVER], .events = 0}, /* POLLHUP is always reported */
        [CLIENT] = {.fd = lease->numbers[CLIENT], .events = POLLIN},
    };
    while (ends[SERVER].fd >= 0 || ends[CLIENT].fd >= 0) {
        if (poll(ends, NUM_ENDS, -1) < 0) {
            continue;
        }
        if (ends[OVER].revents) {
            free_lease(lease);
            return NULL;
        }
        for (int i = SERVER; i <= CLIENT; i++) {
            if (ends[i].fd >= 0 && ends[i].revents) {
                ends[i].fd = -1; /* it has ended; poll leaves negative numbers out */
            }
        }
    }
    if (poll(ends, 1, lease->close_ms) <= 0) {
        kill_all();
    }
    free_lease(lease);
    return NULL;
}

int
vecenv_watch_lease(int server, int client, int over, int close_ms, const char *mark)
{
    lease_watch *lease = calloc(1, sizeof *lease);
    if (lease == NULL || strlen(mark) >= sizeof own_mark) {
        free(lease);
        return lease == NULL ? ENOMEM : ENAMETOOLONG;
    }
    strcpy(own_mark, mark);
    lease->close_ms = close_ms;
    const int given[NUM_ENDS] = {[OVER] = over, [SERVER] = server, [CLIENT] = client};
    int error = 0;
    for (int i = 0; i < NUM_ENDS; i++) {
        lease->numbers[i] = fcntl(given[i], F_DUPFD_CLOEXEC, 0);
        error = lease->numbers[i] < 0 && error == 0 ? errno : error;
    }
    error = error != 0 ? error : start_watcher(watch_lease, lease);
    if (error != 0) {
        free_lease(lease);
    }
    return error;
}
