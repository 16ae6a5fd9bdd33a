"""Transport: HTTP with access checks, a notebook's comm, and calls within this process."""
