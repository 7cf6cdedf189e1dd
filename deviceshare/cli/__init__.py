"""The command line: a module for each command, which decides nothing that a library call couldn't."""
