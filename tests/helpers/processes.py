"""What runs below the tests."""

import time

import psutil

from baechi_lab.workers import forked


def children():
    """Process ids of all descendants but the process that workers are forked from, which is to stay."""
    stays = {server.process.pid for server in forked._running.values()}
    return {p.pid for p in psutil.Process().children(recursive=True)} - stays


def have_ended(*pids):
    """Have the processes ended (a zombie, whose parent has not looked yet, has)? Waits up to 10 s."""
    for _ in range(200):
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
            return True
        time.sleep(0.05)
    return False
