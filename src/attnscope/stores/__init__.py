"""Files in a local folder or in an object store."""
