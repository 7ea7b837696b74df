"""Bytes that a device holds while it runs a graph: buffers that outputs share, and peaks of one device."""
