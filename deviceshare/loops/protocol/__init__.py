"""The claim protocol, a file for each page of docs/claims.md: bind, collect, repair, rebind."""
