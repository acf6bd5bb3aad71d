"""The contents of a row, and the address of each value in shared memory.

spec            nested observation spaces as named arrays
columns         the table of the columns of a row
arena           the layout of the shared segment of rows and actions
counters        the layout of the shared segment that other programs may read
flags           operations of commands, flags of commands and rows
rows            rows as arrays, in the ring or in memory of their own
bounds          checks that actions are members of their space
differences     where two spaces differ, for errors
info_cells      numbers of an info dict in the columns of a row
messages        pickled values that have no column
commands        the calls of one env, as recovery repeats them
lasting_calls   the calls that may have changed an env, for as long as they are needed
native          the choice between C and Python
"""
