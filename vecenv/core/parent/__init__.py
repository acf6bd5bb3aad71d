"""The parent's end: actions out, batches in.

hub             all slots of a pool: requests out, rows in
batch           views of the rows that one receive delivers
leases          blocks that the caller may keep
copy_timer      how long front ends copy batches
inbox           messages of workers, by command
pickled_infos   counts of infos that arrive pickled
watchdog        commands that exceed their limit
reports         when to report commands without a limit
"""
