/* Marked processes: those that the envs of a worker have started, in whatever session they are. The
 * mark is a text in their environment, or in the name of a memory file that they have mapped; see
 * core/system/process_tree.py. */
#ifndef VECENV_MARKED_H
#define VECENV_MARKED_H

/* Kill every process with this mark but the calling one. Safe in a signal handler: only system
 * calls, and memory on the stack (7 KiB). Does nothing without /proc or for an empty mark. */
void vecenv_kill_marked(const char *mark);

#endif
