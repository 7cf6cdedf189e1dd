"""The command line: a module for each command, and how their answers are printed."""
