"""What list schedulers share: earliest starts, insertion into gaps, queues of pairs, replay of plans."""
