"""How questions arrive and answers leave: over HTTP behind a guard, over a notebook's comm, or inside this process."""
