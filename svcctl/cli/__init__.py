"""The command line: parses arguments, asks the state, hands records to render."""
