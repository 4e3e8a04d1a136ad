"""One module a peer: its name, its packages, and the same actor written against its API."""
