#define _GNU_SOURCE
#include "shm/parent_watch.h"

#include "shm/marked.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
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
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error != 0) {
        return error;
    }
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, WATCH_STACK_NBYTES);
    /* Signals belong to the env: the watcher's thread blocks all of them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    error = pthread_create(&thread, &attributes, watch, (void *)(intptr_t)connection);
    if (error == EINVAL) { /* the thread-local memory of libraries exceeds the stack */
        pthread_attr_destroy(&attributes);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        error = pthread_create(&thread, &attributes, watch, (void *)(intptr_t)connection);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
