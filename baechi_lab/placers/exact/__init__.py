"""The placer `exact`: the optimum by constraint programming, or a proven gap."""
