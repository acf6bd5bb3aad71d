"""The interface of the C extension in pure Python, for installs without a compiler; `words` explains the protocol.

words, values, records      access to shared words; values into columns; digests of replies
info_cells                  the cells of infos into one array per key
timing                  the timer of operations
slot, hub, outstanding      the worker's end; the parent's end; the outstanding replies
socket, local               transports: control sockets, and a queue within one process
parent_watch                kills a worker when its parent ends
"""
