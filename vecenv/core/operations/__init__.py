"""The operations of a pool: one request and one wait at a time, over the interface of engines.

engine          the calls that an engine must provide
lifecycle       owner, lock and end of a pool
requests        checks and sends actions, resets and calls
waiter          waits for rows, messages, deaths and deadlines
"""
