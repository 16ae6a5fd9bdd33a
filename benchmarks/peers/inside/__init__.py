"""What runs inside of a peer's environment: files that are started by their path and answer with one line of JSON.

They import nothing of AttnScope's, except where AttnScope itself is measured, and reach every library by its name,
since none of them has to be installed where this is read.
"""
