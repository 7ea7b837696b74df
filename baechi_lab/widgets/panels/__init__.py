"""The panels of the workbench: controls of the model, without state of their own."""
