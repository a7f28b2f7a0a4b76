"""The command line, `trialtap`: one module a command."""
