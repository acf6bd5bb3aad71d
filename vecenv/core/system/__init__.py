"""The operating system: clock, shared memory, signals, sockets, processes. No file here knows an env.

clock           monotonic time and deadlines
descriptor      the owner of one file descriptor
segment         one named shared-memory mapping
signals         sections that no signal handler interrupts
tokens          a semaphore that two processes share
worker_socket   messages and descriptors over the control socket of a worker
message_socket  short messages in JSON between an env server and its clients
start_process   start a worker by fork, forkserver or spawn
fork_server     processes that import modules once and fork others
shared_objects  locks, queues and pipes of `multiprocessing` in the pickles for a worker
log_records     log records of workers, for the loggers of their parent
output_capture  standard output and error of a worker that builds its envs
stack_dump      Python stacks of a worker that hangs or dies
blas_threads    limits for the threads of numeric libraries
process_settings  settings of Python and numeric libraries, for workers to take over
process_state   state that envs of one program may not leave to the next one
module_paths    files of modules that the search path does not lead to
module_files    files of the loaded modules as they were when they were loaded
affinity        the core that a worker prefers
run_delay       for how long a thread waited for a core
exit_functions  exit functions and finalizers of a forked process
fork_guard      ends processes that code of an env forks, when they leave that code
process_stat    start time, state and CPU time of any process
process_tree    the processes that a worker has started, and their end
room            the processes and the memory that are left
process_title   the title of this process
monitor_files   files by which other programs find the pools that run
"""
