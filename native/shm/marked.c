#define _GNU_SOURCE
#include "shm/marked.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The processes that were found may have started others before they were killed. */
#define MOST_ROUNDS 4
#define PATH_NBYTES 48

/* Write "/proc/" `pid` `name`, which fits, to `path`. */
static void
join(char path[PATH_NBYTES], const char *pid, const char *name)
{
    memcpy(path, "/proc/", 6);
    size_t used = 6;
    for (; *pid != '\0' && used < 20; pid++) {
        path[used++] = *pid;
    }
    memcpy(path + used, name, strlen(name) + 1);
}

/* Return whether a file contains the mark. The end of each part is kept, as the next part may
 * complete the mark. */
static bool
contains(const char *path, const char *mark, size_t nbytes)
{
    char text[4096];
    size_t kept = 0;
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    for (;;) {
        ssize_t count = read(fd, text + kept, sizeof text - kept);
        if (count <= 0) {
            break;
        }
        size_t filled = kept + (size_t)count;
        if (memmem(text, filled, mark, nbytes) != NULL) {
            found = true;
            break;
        }
        kept = filled < nbytes - 1 ? filled : nbytes - 1;
        memmove(text, text + filled - kept, kept);
    }
    close(fd);
    return found;
}

/* Return the process id that the name of an entry of /proc is; 0 for other entries. */
static pid_t
parse_pid(const char *name)
{
    int64_t pid = 0;
    for (; *name >= '0' && *name <= '9' && pid < INT32_MAX; name++) {
        pid = 10 * pid + (*name - '0');
    }
    return *name == '\0' && pid < INT32_MAX ? (pid_t)pid : 0;
}

/* Kill the marked processes once; return whether there were any. */
static bool
kill_round(int proc, const char *mark, size_t nbytes)
{
    _Alignas(struct dirent64) char entries[2048];
    bool found = false;
    long count;
    if (lseek(proc, 0, SEEK_SET) < 0) {
        return false;
    }
    while ((count = syscall(SYS_getdents64, proc, entries, sizeof entries)) > 0) {
        for (long at = 0; at < count;) {
            const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);
            at += entry->d_reclen;
            pid_t pid = parse_pid(entry->d_name);
            if (pid <= 1 || pid == getpid()) {
                continue;
            }
            char environ_path[PATH_NBYTES], maps_path[PATH_NBYTES];
            join(environ_path, entry->d_name, "/environ");
            join(maps_path, entry->d_name, "/maps");
            if (contains(environ_path, mark, nbytes) || contains(maps_path, mark, nbytes)) {
                found = kill(pid, SIGKILL) == 0 || found;
            }
        }
    }
    return found;
}

void
vecenv_kill_marked(const char *mark)
{
    size_t nbytes = strlen(mark);
    int proc = nbytes == 0 ? -1 : open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0) {
        return;
    }
    for (int round = 0; round < MOST_ROUNDS && kill_round(proc, mark, nbytes); round++) {
    }
    close(proc);
}
