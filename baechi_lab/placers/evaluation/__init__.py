"""What one candidate placement costs, compiled: the model of an instance, event rules, orders, early stops."""
