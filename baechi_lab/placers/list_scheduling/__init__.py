"""Common parts of list schedulers: earliest starts, insertion into gaps, queues of pairs, replay of plans."""
