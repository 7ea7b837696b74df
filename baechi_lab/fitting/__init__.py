"""Will it fit, and what to give up when it does not."""
