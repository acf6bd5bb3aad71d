"""The log of the calls of each env, and the decisions after the failure of a worker.

journal         the calls of each env since its last restore point
action_pages    memory of the logged actions
restore_points  the points from which one env can be restored
policy          whether to restore, to truncate or to raise
failure_log     log lines about failures, which are left out if an env often fails
recycling       replacement of workers that are well
resume          the state of a lost pool, from which another pool continues
reproducer      a file that repeats a failure in one process
"""
