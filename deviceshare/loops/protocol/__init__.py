"""The claim protocol, a file for each page of docs/claims.md: bind, reserve, collect, repair, rebind."""
