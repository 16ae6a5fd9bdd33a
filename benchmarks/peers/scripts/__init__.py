"""Scripts that run in the environment of a library, by path, and print one line of JSON.

They import AttnScope only where it is measured, and import all libraries by name.
"""
