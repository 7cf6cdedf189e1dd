"""Where a sandbox's programs come from: a release, Debian's sources, the cache."""
