"""The command line's subcommands: one small module each, imported only when it is asked for."""
