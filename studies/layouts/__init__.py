"""Layouts of GPT, Llama, DeepSeek and MPT models as measured on A100, H100, B200 and GH200, predicted."""
