"""The link between A100 of one machine, fitted to measured times of all-reduce."""
