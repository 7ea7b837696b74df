"""The workbench's parts, one panel each: controls over the model, no state of their own."""
