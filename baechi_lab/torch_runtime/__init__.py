"""What runs inside a distributed PyTorch model: it imports only torch and the standard library, so that an export can copy it."""
