"""The interface of the extension in Python, for installs without a compiler; `words` explains the protocol.

words, values, records      access to shared words; values into columns; digests of answers
slot, hub, outstanding      the worker's end, the parent's end, and what it waits for
socket, local, parent_watch transports, and the end of a worker with its parent
"""
