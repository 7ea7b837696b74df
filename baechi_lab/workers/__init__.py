"""Worker processes: start them, send them requests, and report how they ended.

`profilers` and `executors` use this package and it imports neither. A worker process imports the module that answers a
request by its name, when the request comes.
"""
