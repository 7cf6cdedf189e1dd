"""What a person types. Each command is one module; none decides anything that a library call couldn't."""
