/* Parent watch: ends a worker when its parent ends. Its thread needs neither the GIL nor the main
 * thread. */
#ifndef VECENV_PARENT_WATCH_H
#define VECENV_PARENT_WATCH_H

#include <sys/types.h>

/* Start a detached thread that kills this process group with SIGKILL when the parent `pid` ends:
 * `pidfd` is readable, or the parent's end of the socket `connection` is closed. The group is
 * this process and the processes that its envs have started, because each worker leads its own
 * session. The processes with `mark` in other sessions are killed before; see shm/marked.h. A
 * stopped process is continued first. Takes ownership of `pidfd`. Returns 0 or an errno. */
int vecenv_watch_parent(pid_t pid, int pidfd, int connection, const char *mark);

/* Start a detached thread that kills this process group, and the processes with `mark`, once both
 * the other end of the socket `server` is closed and the process of the pidfd `client` has ended,
 * and `close_ms` milliseconds later (-1: never) `over` is not readable. The thread ends as soon as
 * `over` is readable. Uses duplicates of the descriptors. Returns 0 or an errno. */
int vecenv_watch_lease(int server, int client, int over, int close_ms, const char *mark);

/* A call that took longer than this may include a stop of the process (SIGSTOP), during which the
 * parent may have ended. */
#define VECENV_MAYBE_STOPPED_NS 100000

/* Kill these processes now if the watched parent has ended. Call it after a long call: a
 * continued process runs before its watcher does, and may stop itself again. */
void vecenv_check_parent(void);

#endif
