/* Die with the parent: a native thread that needs neither the GIL nor the main thread. */
#ifndef VECENV_PARENT_WATCH_H
#define VECENV_PARENT_WATCH_H

#include <sys/types.h>

/* Start a detached thread that kills this process group with SIGKILL as soon as
 * `pidfd` (of the parent, `pid`) says that it has exited, or the parent has no end of `connection`
 * (a socket) any more. The group is this process and what its envs started, because every worker
 * leads a session of its own. A process that is stopped is continued for that. Takes over
 * `pidfd`. Returns 0, or an errno. */
int vecenv_watch_parent(pid_t pid, int pidfd, int connection);

/* A call that took longer may have been stopped meanwhile, until the parent ended. */
#define VECENV_MAYBE_STOPPED_NS 100000

/* Kill the group now if the watched parent has gone. For after what took long: a process that
 * was stopped goes on before its watcher does, and may stop itself again. */
void vecenv_check_parent(void);

#endif
