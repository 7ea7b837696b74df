"""A TensorFlow process of its own: start it, send it requests, and survive whatever becomes of it.

Below the stages: `profilers` and `executors` use it, it knows neither. The process finds the code that answers a
request by the name of its module, when the request comes.
"""
